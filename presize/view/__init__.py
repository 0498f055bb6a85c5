"""Datasets to look at: pages of thumbnails, served or written to a file, and what notebooks show."""
