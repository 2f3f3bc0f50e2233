"""Every command that trains by one method."""

from __future__ import annotations

from importlib import import_module

import pytest

# The module of each command's method.
METHODS = {
    **{f"cakrr.{name}": f"cakrr.{name}"
       for name in ("bkrr", "bkrr2", "bkrr3", "dckrr", "dkrr", "kkrr", "kkrr2", "kkrr3", "subset", "twolevel")},
    **{f"casvm.{name}": f"casvm.{name}"
       for name in ("bkmsvm", "cascade", "casvm", "cpsvm", "dcfilter", "dcsvm", "dissmo", "fcfssvm", "oneclass", "svr")
       },
    "asygcd": "asygcd.asygcd_method",
    "cakriging": "cakriging",
}  # fmt: skip
of_every_command = pytest.mark.parametrize("program", METHODS)


def method_of(program):
    return import_module(METHODS[program]).METHOD
