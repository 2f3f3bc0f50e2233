"""``cakernels explain``: what each feature adds to a model's answers."""
