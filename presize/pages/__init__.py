"""Results -> pages: self-contained HTML in which all text is escaped."""
