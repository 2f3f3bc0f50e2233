"""What tests share: rows and files (data), checks, references, commands, estimators, ranks (distributed)."""
