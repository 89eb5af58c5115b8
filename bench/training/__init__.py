"""Training benchmark: fdl beside DDP, local SGD and others, in the same run (docs/benchmarks.md)."""
