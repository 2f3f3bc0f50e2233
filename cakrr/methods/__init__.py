"""The methods that train ridge regressions on many ranks."""
