"""Loaders and training steps, run and observed: what presize bench and presize diagnose measure with."""
