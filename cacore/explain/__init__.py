"""Explanations of predictions: Shapley values of kernel expansions, in closed form."""

ABSENT = "absent"  # in place of background rows: the kernel's factor of a feature that is absent is 1
