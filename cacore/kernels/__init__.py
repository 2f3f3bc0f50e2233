"""Kernel values: the one place that evaluates kernels."""

from cacore.kernels.values import KINDS, Kernel, Points, distances

__all__ = ["KINDS", "Kernel", "Points", "distances"]
