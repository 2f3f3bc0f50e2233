"""Asynchronous greedy coordinate descent on shared memory; the solver is still to come."""
