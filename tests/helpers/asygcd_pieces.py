"""Threads of Asy-GCD in a test."""

from __future__ import annotations

import numpy as np


def variables(n, rng):
    """Some at a bound, some between, and some that are given no room; bounds of both signs."""
    y = rng.choice([-1.0, 1.0], n)
    C = np.where(rng.random(n) < 0.1, 0.0, rng.exponential(1.0, n))
    share = np.clip(rng.uniform(-0.5, 1.5, n), 0, 1)
    return np.minimum(0, C * y), np.maximum(0, C * y), share * C * y, rng.normal(size=n)


def violated(low, high, beta, r):
    return np.abs(beta - np.clip(beta - r, low, high))
