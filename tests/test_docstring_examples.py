"""The examples in docstrings of everything public: there is one, it is short, and it runs as it is printed."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest

from cacore.kernels import KINDS

API = Path(__file__).resolve().parent.parent / "docs" / "api.md"
PACKAGES = ("cakernels", "casvm", "cakrr", "cakriging", "asygcd", "partition")
NEEDS = {"RunPage": "matplotlib", "to_onnx": "onnx"}


def public():
    """Classes and functions by name: those of the packages' ``__all__``, and those that docs/api.md lists."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        found |= {f"{package}.{name}": getattr(module, name) for name in module.__all__}
    for block in re.findall(r"```\{eval-rst\}\n(.*?)```", API.read_text(), re.DOTALL):
        module = (re.findall(r"\.\. currentmodule:: ([\w.]+)", block) or [""])[-1]
        names = re.findall(r"^   ([\w.]+)$", block, re.MULTILINE)
        for listed, members in re.findall(r"\.\. automodule:: ([\w.]+)\n   :members: (.*)", block):
            names += [f"{listed}.{member}" for member in members.split(", ")]
        for name in names:
            home, _, last = (name if "." in name else f"{module}.{name}").rpartition(".")
            found[f"{home}.{last}"] = getattr(importlib.import_module(home), last)
    once = {id(item): (name, item) for name, item in found.items() if inspect.isclass(item) or inspect.isroutine(item)}
    return dict(once.values())


PUBLIC = public()


@pytest.fixture
def _registered_kernels():
    """The registry of kernels, put back afterwards: an example may add one, and other tests go over all."""
    before = dict(KINDS)
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.mark.usefixtures("_registered_kernels")
@pytest.mark.parametrize("name", PUBLIC)
def test_example(name, tmp_path, monkeypatch):
    """It has two to eight lines, names what it shows, and prints what it says; files that it writes are relative."""
    last = name.rpartition(".")[2]
    if last in NEEDS:
        pytest.importorskip(NEEDS[last])
    monkeypatch.chdir(tmp_path)
    text = inspect.cleandoc(PUBLIC[name].__doc__)
    _, heading, example = text.partition("Examples\n--------\n")
    assert heading, f"{name}: add the section Examples to its docstring, two to eight lines that run"
    assert 2 <= len(example.splitlines()) <= 8
    test = doctest.DocTestParser().get_doctest(example, {}, name, None, 0)
    assert re.search(rf"\b{last}\b", example)
    failures = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "numpy.ndarray size changed")
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=failures.append)
    assert failures == []


def test_every_public_name_is_among_the_examples():
    assert len(PUBLIC) > 70
    assert {"cakrr.BKRR2", "partition.Partitioner", "cakrr.observe.sums", "cacore.kernels.KernelKind"} <= set(PUBLIC)


def test_help_of_svm_estimators_is_complete():
    """Each parameter is listed, and words that refer to another class are replaced by its text."""
    estimators = [item for item in PUBLIC.values() if item.__module__.startswith("casvm.estimators")]
    assert len(estimators) >= 14
    for cls in estimators:
        parameters = cls.__doc__.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
        listed = ", ".join(re.findall(r"^(\w[\w, ]*)", parameters, re.MULTILINE)).replace(" ", "").split(",")
        assert sorted(listed) == sorted(inspect.signature(cls).parameters), cls.__name__
        assert "As for :class:" not in cls.__doc__
