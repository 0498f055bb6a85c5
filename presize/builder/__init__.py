"""Turns a folder of images into a dataset: planning, tasks, publishing; resuming, updates, builds in parts."""
