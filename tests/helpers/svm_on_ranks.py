"""SVMs in parts on rows of many ranks."""

from __future__ import annotations

import pytest

from casvm import bkmsvm, casvm, cpsvm, fcfssvm
from casvm.options import SVMOptions
from helpers.distributed import labelled

METHODS = {"casvm": casvm.METHOD, "cpsvm": cpsvm.METHOD, "bkmsvm": bkmsvm.METHOD, "fcfssvm": fcfssvm.METHOD}
NAMES = {"casvm": "random", "cpsvm": "kmeans", "bkmsvm": "bkm", "fcfssvm": "fcfs"}
methods = pytest.mark.parametrize("name", METHODS)
PARTITIONED = [name for name in METHODS if name != "casvm"]
N, T_ROWS, GAMMA = 157, 41, 0.4  # 157 is no multiple of any number of ranks


def train(name, X, y, my=None, comm=None, weights=None, **options):
    """On this rank's rows `my` of all ranks', or all rows on one rank."""
    given = SVMOptions(**{"partitions": 6, "seed": 2, "gamma": GAMMA, "tol": 1e-6, **options})
    return METHODS[name](labelled(X, y, my, weights), given, comm)
