"""Source images out of the ordinary: stored as they are, of 16 bits, or of formats that few have."""
