"""Metrics of predictions, computed from sums over all ranks."""
