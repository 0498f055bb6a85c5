"""The commands that make datasets, and what they say about it: build, derive, repair."""
