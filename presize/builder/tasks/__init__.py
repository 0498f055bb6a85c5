"""Work of worker processes: each task makes one shard of each stream, and its sidecar, even if decoders crash."""
