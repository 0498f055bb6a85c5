"""Sources of a build: lists and reads folders, label tables, containers and datasets, and makes sample images."""
