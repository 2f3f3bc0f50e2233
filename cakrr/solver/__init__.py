"""Solvers of the ridge system of a part, and what is derived from its factor."""
