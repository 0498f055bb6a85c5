"""How a batch is made: which samples, from which tiles, by which worker, into which memory."""
