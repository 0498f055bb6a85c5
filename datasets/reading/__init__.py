"""How a batch comes about: which samples, from which tiles, by which worker, into which memory."""
