"""Solving the exact system without a factorisation: preconditioned conjugate gradients on distributed rows."""
