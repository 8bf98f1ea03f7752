"""Benchmarks: `make bench` runs them all, `python -m benchmarks round` one of them."""
