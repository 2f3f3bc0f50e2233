"""Parameter search: folds, grids, scores that add up over parts, early stopping of settings, results."""
