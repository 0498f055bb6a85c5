"""Boxes of images -> the size of a batch."""
