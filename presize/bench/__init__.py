"""presize bench: raw against presized against LMDB, each run in a process of its own."""
