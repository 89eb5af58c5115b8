"""What is learned at equal samples: fdl against the fastest device alone (docs/benchmarks.md)."""
