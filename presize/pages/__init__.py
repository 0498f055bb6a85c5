"""Pages that show results: self-contained HTML in which all text is escaped."""
