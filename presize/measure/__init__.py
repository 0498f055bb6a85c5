"""Speed of training and its loader, the bottleneck, and cures: bench, diagnose, simulate, doctor."""
