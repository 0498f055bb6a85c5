"""Runs tasks in this process, in worker processes, or on the workers of Dask, Ray or Spark."""
