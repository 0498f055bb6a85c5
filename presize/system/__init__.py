"""What the operating system tells and does: files, cores, memory, mounts, the page cache."""
