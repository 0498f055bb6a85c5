"""presize doctor: what of this machine decides how fast images load, and what to do about it."""
