"""The help of every command: what it costs, and how it is arranged."""

from __future__ import annotations

from importlib import import_module

import pytest
from helpers.methods import METHODS, method_of, of_every_command

import casvm.casvm
import casvm.command
from cacore.learn.options import GROUPS, declared
from cacore.run import launch

COUNTED = """
import contextlib, io, runpy, sys
sys.argv = [sys.argv[1], "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
heavy = {"numba", "scipy", "sklearn", "h5py", "mpi4py.MPI"} & set(sys.modules)
print(len(sys.modules), "usage:" in shown.getvalue(), *sorted(heavy))
"""


@pytest.mark.parametrize(
    "program",
    [*METHODS, "cakrr.predict", "casvm.predict", "asygcd.predict", "cakriging.predict", "cacore.io", "cacore.traffic"],
)
def test_modules_that_help_loads(program, python):
    done = python("-c", COUNTED, program)
    assert (done.returncode, done.stderr) == (0, "")
    count, usage, *heavy = done.stdout.split()
    assert (usage, heavy) == ("True", [])
    assert int(count) <= 500


@of_every_command
def test_help_is_in_groups(program, capsys):
    """The options that most people need first come first; every other one is in a group; an example ends the help."""
    method = method_of(program)
    kinds = launch.Training, method.options
    shown = [known for kind in kinds for one, known in declared(kind) if known.flag and method.has(one.name)]
    assert {known.group for known in shown} <= {"", *GROUPS}
    assert len([known for known in shown if not known.group]) <= 12
    with pytest.raises(SystemExit):
        import_module(f"{program.split('.')[0]}.command").main(method, ["--help"])
    text = capsys.readouterr().out
    places = [text.index(f"\n{title}:") for title in ("common options", *GROUPS) if f"\n{title}:" in text]
    assert places == sorted(places)
    assert len(places) > 5
    assert text.index("\n  DATA") < text.index("\n  --test")
    assert f"example: {method.example}".split() == text[text.index("example:") :].split()


def test_a_default_of_zero_is_shown(capsys):
    with pytest.raises(SystemExit):
        casvm.command.main(casvm.casvm.METHOD, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "seed of the random number generator (default: 0)" in text
    assert "constant term of the polynomial and sigmoid kernels (default: 0.0)" in text
