"""What worker processes do: each task makes one shard of each size, and its side-car, whatever an image does."""
