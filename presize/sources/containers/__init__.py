"""Sources that hold many samples in a file: LMDBs of other programs, WebDataset tar shards, Parquet files."""
