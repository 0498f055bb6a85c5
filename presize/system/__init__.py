"""The operating system: files, cores, memory, mounts, disks, the page cache, and what processes use."""
