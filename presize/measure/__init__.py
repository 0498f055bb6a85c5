"""How fast training and its loader are, what holds them back, and what would help: bench, diagnose, simulate."""
