"""The fuzzers, a few cases of each form; ``make fuzz`` runs more for an hour."""

from __future__ import annotations

import pytest
from fuzz import columns, commands, containers, data_files, files_that_change, models, pairs, ranks, scales
from fuzz.runner import run

FEW = [
    (data_files, 12), (models, 10), (commands, 6), (files_that_change, 1), (pairs, 1), (columns, 3), (containers, 4),
    (scales, 2), (ranks, 4),
]  # fmt: skip


@pytest.mark.parametrize(("fuzzer", "count"), FEW)
def test_changed_at_random(fuzzer, count):
    forms = getattr(fuzzer, "QUICK", fuzzer.FORMS)
    ends = run(fuzzer.__name__.rsplit(".", 1)[-1], forms, count, seed=0)
    assert [len(ends[form]) for form in forms] == [count] * len(forms)
    wrong = {form: set(told) - set(fuzzer.GOOD) for form, told in ends.items() if set(told) - set(fuzzer.GOOD)}
    assert not wrong
    assert {end for told in ends.values() for end in told} == set(fuzzer.GOOD)  # both were tried
