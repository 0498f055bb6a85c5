"""The dataset on disk: its shards, its index, its manifest; reading, checking and exporting them."""
