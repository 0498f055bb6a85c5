"""What comes from other datasets: a whole dataset, whose records are copied, or the options of a build."""
