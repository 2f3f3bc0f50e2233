"""Speed and memory against named peers, in one run; python -m benchmarks.NAME."""
