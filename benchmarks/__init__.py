"""Benchmarks of speed and memory against named peers, measured in one run: python -m benchmarks.NAME."""
