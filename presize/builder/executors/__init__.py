"""Builds on clusters. Each engine's module connects to it; an errand is what its workers do; a cluster hands them out.

The engines are called by their own interfaces, not through joblib's back-ends for them: joblib ends all tasks at the
first that fails, and gives results of Ray and Spark when all have ended.
"""
