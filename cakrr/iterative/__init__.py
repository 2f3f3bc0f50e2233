"""The exact system without its factorisation: preconditioned conjugate gradients on rows that stay where they are."""
