"""Sources of a build: raw folders and label tables, listed and read; and a folder of made-up photographs."""
