"""Speed of training and its loader, the bottleneck, and what would help: bench, diagnose, simulate."""
