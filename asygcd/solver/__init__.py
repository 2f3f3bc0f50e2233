"""Asynchronous greedy coordinate descent (Algorithm 14)."""

UPDATES = ("owned", "atomic", "stochastic")  # forms of the gradient: AsyGCD runs them, and the options name them
