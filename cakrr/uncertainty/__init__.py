"""How sure predictions are: standard deviations and intervals."""
