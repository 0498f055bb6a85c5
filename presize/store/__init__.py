"""The dataset on disk: shards, index and manifest; reading, verifying and exporting it."""
