"""Every command that trains by one method."""

from __future__ import annotations

from importlib import import_module

import pytest

from cacore.learn.method import method_names

# The module of each command's method.
METHODS = {
    **{f"{package}.{name}": f"{package}.{name}" for package in ("cakrr", "casvm") for name in method_names(package)},
    "asygcd": "asygcd.options",
    "cakriging": "cakriging.kriging_method",
}  # fmt: skip
of_every_command = pytest.mark.parametrize("program", METHODS)


def method_of(program):
    return import_module(METHODS[program]).METHOD
