"""Making of batches: order of samples, regions of images, decoding, workers and memory."""
