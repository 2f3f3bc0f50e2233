"""Failures that all ranks raise, and the rows that they fail on."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.distributed import RANK, WORLD, R

SIZE = R


def rows(n=60, d=3):
    """This rank's rows, targets and labels."""
    rng = np.random.default_rng(RANK)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] ** 2, np.where(X.sum(axis=1) > 0, 1, -1)


def every_rank_raises(kind, work):
    """The message, which all ranks raise as an error of the same kind; the host's communicator works afterwards."""
    with pytest.raises(kind) as caught:
        work()
    assert type(caught.value) is kind
    messages = WORLD.allgather(str(caught.value))
    assert len(set(messages)) == 1
    assert WORLD.allreduce(1) == SIZE
    return messages[0]


def failing(error):
    """Something that raises `error` whatever it is called with."""

    def call(*args, **options):
        raise error

    return call
