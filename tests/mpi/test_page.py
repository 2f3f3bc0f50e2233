"""The page of a run on several ranks: seconds of each, and bytes between them."""

from __future__ import annotations

import json

import pytest
from helpers.data import saddle, write_hdf5
from mpi4py import MPI

from cacore.comm import Communicator
from cacore.run import page
from cakrr import bkrr2
from cakrr import command as krr_command
from casvm import command as svm_command
from casvm import cpsvm

pytest.importorskip("matplotlib")
WORLD = MPI.COMM_WORLD
R, RANK = WORLD.size, WORLD.rank


@pytest.mark.parametrize(("method", "trained"), [
    (bkrr2.METHOD, krr_command.train), (cpsvm.METHOD, svm_command.train),
], ids=["krr", "svm"])  # fmt: skip
def test_page_on_ranks(method, trained, folder):
    """The report has what the page shows, so that it can be drawn from the report as well."""
    X, y = saddle(150)
    if RANK == 0:
        write_hdf5(folder / "rows.h5", train=(X[:110], y[:110] > 0), test=(X[110:], y[110:] > 0))
    WORLD.barrier()
    made, report = folder / f"{method.name}.html", folder / f"{method.name}.json"
    words = [str(folder / "rows.h5"), "--partitions", "4", "--html", str(made), "--report", str(report), "--quiet"]
    words += ["--sigma", "1", "--lambda", "1e-3"] if method is bkrr2.METHOD else ["--C", "1", "--gamma", "0.5"]
    trained(method, Communicator(WORLD), words)
    WORLD.barrier()
    found = json.loads(report.read_text())
    assert found["seconds_by_rank"]["ranks"] == list(range(R))
    assert len(found["seconds_by_rank"]["train"]) == R
    assert page.built({method.name: found}) == made.read_text()
    assert ("traffic" in found) == (R > 1)
    if R > 1:
        traffic = found["traffic"]
        assert traffic["ranks_per_group"] == 1
        for phase in ("partition", "train"):
            assert sum(map(sum, traffic["bytes"].get(phase, []))) == found["comm"][phase]["bytes"]
        assert "Bytes between ranks" in made.read_text()
