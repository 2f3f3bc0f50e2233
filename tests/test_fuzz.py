"""The fuzzers, a few cases of each form; ``make fuzz`` runs more for an hour."""

from __future__ import annotations

import pytest
from fuzz import columns, commands, containers, data_files, files_that_change, models, pairs, ranks, scales
from fuzz.runner import run

FEW = [
    (data_files, 6), (models, 5), (commands, 3), (files_that_change, 1), (pairs, 1), (columns, 2), (containers, 2),
    (scales, 1), (ranks, 4),
]  # fmt: skip


@pytest.mark.parametrize(("fuzzer", "count"), FEW)
def test_changed_at_random(fuzzer, count):
    forms = getattr(fuzzer, "QUICK", fuzzer.FORMS)
    ends = run(fuzzer.__name__.rsplit(".", 1)[-1], forms, count, seed=0)
    assert [len(ends[form]) for form in forms] == [count] * len(forms)
    wrong = {form: set(told) - set(fuzzer.GOOD) for form, told in ends.items() if set(told) - set(fuzzer.GOOD)}
    assert not wrong
    assert {end for told in ends.values() for end in told} == set(fuzzer.GOOD)  # both were tried


def test_each_option_has_a_valid_value():
    """Of every command that is fuzzed: otherwise no pair with a new option is tried."""
    unknown = [
        (form, word, flag)
        for form in pairs.FORMS
        for word in commands.LISTED.get(form, [""])
        for flag, takes in commands._flags(form, *([word] if word else [])).items()
        if takes and pairs.valid_value(form, flag) is None
    ]
    assert not unknown


def test_an_extra_column_that_is_the_index_is_no_feature(tmp_path):
    assert columns.case("parquet", 24, 20261128, tmp_path) == "right"
