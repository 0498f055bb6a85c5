"""The images that samples have beside their first: masks, whose values are kept exactly, and others."""
