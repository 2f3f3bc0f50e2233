"""Shared parts of all kernel SVMs: the dual problem, the solver interface, decisions, the estimators' base classes."""
