"""Trained SVMs."""
