"""Tile-indexed JPEG: an ordinary baseline JPEG that can be cut to a crop without decoding it.

Its restart interval divides it into independent tiles of k MCUs, and an APP9 segment lists their lengths in bytes
(docs/format.md specifies both).
"""
