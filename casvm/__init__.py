"""Kernel support vector machines in parts; the methods are still to come."""
