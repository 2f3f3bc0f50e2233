"""Fuzzers: files, models and command lines changed at random, and jobs killed at random; ``python -m tests.fuzz``."""
