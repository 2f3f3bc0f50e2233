"""Choosing parameters: folds, scores that add up over parts, settings that are ended early, and what came of them."""
