"""Uncertainty of predictions: standard deviations, intervals and probabilities."""
