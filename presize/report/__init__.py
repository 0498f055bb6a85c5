"""Results -> pages: self-contained HTML, nothing of it from elsewhere, every text in it escaped. Pure."""
