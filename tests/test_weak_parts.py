"""Weak scaling with parts that stand for others: the calls of the whole program, and the time of the slowest part."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.cluster.programs import method_only
from benchmarks.cluster.world import World
from benchmarks.results import Results
from benchmarks.weak_parts import CASES, StandIns, generated


@pytest.mark.parametrize("name", ["casvm", "casvm-nearest", "bkrr2"])
def test_calls_of_the_whole_program(name, tmp_path):
    """Ranks whose part is not trained divide, exchange and predict as if it were; the slowest part's time is theirs."""
    ranks, case = 5, CASES[name]
    data = generated(tmp_path / "rows.h5", 60 * ranks + 1, 40, case)
    work, some, world = case.program.work(data, ranks, 4.0), StandIns(ranks, 2), World(ranks)
    with some.on(world):
        traces = some.charged(world.run(work))
    every = World(ranks).run(work)
    assert some.chosen <= set(some.trained)
    assert some.standing
    assert sorted([*some.trained, *some.standing]) == list(range(ranks))
    for mine, whole in zip(method_only(traces), method_only(every), strict=True):
        assert [(step.phase, step.call, step.nbytes) for step in mine] == [
            (step.phase, step.call, step.nbytes) for step in whole
        ]
    slowest = max(traces[rank][step].seconds for rank, step in some.trained.items())
    assert all(traces[rank][step].seconds == slowest for rank, step in some.standing.items())
    assert all(traces[rank][step].phase == "train" for rank, step in some.standing.items())


def test_command(tmp_path, capsys, tuned):
    """One line per number of ranks, with an efficiency relative to the first."""
    tuned(touched_gib=0)  # GiB that are fetched before a timing, which means nothing here
    out = tmp_path / "out.json"
    words = ["--methods", "bkrr2", "--ranks", "1", "3", "--rows", "50", "--train", "1", "--repeats", "1"]
    assert main(["weak-parts", *words, "--results", str(out)]) == 0
    first, last = Results.load(out).records
    assert (first["rows"], last["rows"], first["trained"]) == (50, 150, 1)
    assert last["trained"] < 3
    assert first["efficiency"] == 1.0
    assert np.isclose(last["efficiency"], first["seconds"] / last["seconds"])
    assert "| bkrr2 | 3 | 150 | 15 |" in capsys.readouterr().out
