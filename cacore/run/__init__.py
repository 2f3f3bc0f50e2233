"""Commands: options, start, progress, report."""
