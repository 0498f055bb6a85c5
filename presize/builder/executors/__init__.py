"""Where tasks run: in this process, in worker processes, or on the workers of Dask, Ray or Spark.

The engines are called by their own interfaces, not through joblib's back-ends for them: joblib ends all tasks at the
first that fails, and gives results of Ray and Spark when all have ended.
"""
