"""Asynchronous greedy coordinate descent (Algorithm 14)."""
