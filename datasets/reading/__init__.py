"""Making batches: which samples, from which tiles, by which worker, into which memory."""
