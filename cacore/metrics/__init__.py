"""Metrics of predictions: sums that add up over ranks, and what follows from them."""
