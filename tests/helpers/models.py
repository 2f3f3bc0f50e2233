"""Classifiers of each family that are saved."""

from __future__ import annotations

from asygcd import AsyGCDSVC
from casvm import CASVC


def parts(**more):
    return CASVC(**{"n_parts": 3, "random_state": 0, **more})


def asygcd(**more):
    return AsyGCDSVC(**{"gamma": 0.3, "tol": 1e-6, "threads": 1, **more})
