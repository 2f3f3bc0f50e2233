"""The solvers of a ridge system."""
