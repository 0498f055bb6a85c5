"""A dataset from other datasets, whose records are copied."""
