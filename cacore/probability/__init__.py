"""Probabilities of classes: decisions that rows were left out of, what is fitted to them, and several classes."""
