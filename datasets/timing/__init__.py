"""Run and time loaders and training steps, for presize bench and presize diagnose."""
