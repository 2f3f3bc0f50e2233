"""Algorithms of the ridge methods on all ranks; the record of a method names the one that trains it."""
