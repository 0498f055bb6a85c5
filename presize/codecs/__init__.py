"""Conversion of one image from bytes to pixels and back. No module here opens a file or knows a dataset."""
