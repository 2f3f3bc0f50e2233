"""Commands: options, start-up, reading, output and report."""
