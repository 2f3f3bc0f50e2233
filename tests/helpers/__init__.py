"""Shared helpers of the tests: rows and files (data), checks, references, commands, estimators, ranks (distributed)."""
