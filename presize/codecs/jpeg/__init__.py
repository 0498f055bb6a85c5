"""JPEG: segments, metadata, tiles and the decoder."""
