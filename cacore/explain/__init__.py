"""Explanations of predictions: Shapley values of kernel expansions, in closed form."""
