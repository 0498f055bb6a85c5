"""Work of worker processes: each task makes one shard of each size, and its side-car, whatever an image does."""
