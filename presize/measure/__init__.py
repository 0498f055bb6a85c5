"""Speed of training and of its loader, the bottleneck, and remedies: bench, diagnose, simulate, doctor."""
