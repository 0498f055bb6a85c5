"""A raw folder becomes a dataset: plan, tasks, side-cars, publishing; resumed, updated, in one process or many."""
