"""One image, bytes to pixels and back, and nothing else: no module here opens a file or knows a dataset."""
