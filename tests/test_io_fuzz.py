"""Data files changed at random, a few of each form: refused in one line, or read as a simple reader reads them."""

from __future__ import annotations

from fuzz import data_files


def test_changed_at_random():
    for form, ends in data_files.run(data_files.FORMS, 12, seed=0).items():
        assert set(ends) == {"refused", "accepted"}, (form, ends)  # both were tried
