"""Choosing C and gamma in parts: kernel matrices that fit in cache, folds on the same matrix, paths along C."""
