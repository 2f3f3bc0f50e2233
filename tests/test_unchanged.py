"""The recorder of numbers: no command and no estimator is left out, and everything but times is compared."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from helpers.commands import reported
from helpers.data import write_hdf5

from benchmarks.unchanged import differences
from benchmarks.unchanged_cases import COMMANDS
from benchmarks.unchanged_chains import CHAINS, EXEMPT
from benchmarks.unchanged_fits import FITS, collective_fits, described, estimators, hdf5, runnable


def test_every_command_is_recorded():
    trained = {case.module for case in COMMANDS}
    predicted = {f"{case.module.split('.')[0]}.predict" for case in COMMANDS if case.predict}
    recorded = trained | predicted | {command for chain in CHAINS for command in chain.commands}
    assert set(runnable()) == recorded | set(EXEMPT)
    assert not recorded & set(EXEMPT)


def test_every_estimator_is_recorded():
    recorded = {type(fit.make()) for fit in FITS.values()}
    assert set(estimators().values()) == recorded


def test_estimators_on_ranks_are_recorded_there():
    assert set(collective_fits()) == {name for name, kind in estimators().items() if "comm" in kind().get_params()}


def test_names_are_files_of_their_own():
    names = [case.name for case in (*COMMANDS, *CHAINS)] + [f"fit-{name}" for name in FITS]
    assert len(set(names)) == len(names)


def test_two_runs_of_one_command_are_equal(tmp_path):
    """Their reports differ in times alone; a change of any number is seen."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    data = write_hdf5(tmp_path / "rows.h5", train=(X[:40], X[:40].sum(axis=1)), test=(X[40:], X[40:].sum(axis=1)))
    words = [data, "--partitions", "2", "--sigma", "1,2", "--lambda", "1e-3"]
    first, second = (reported("cakrr.bkrr2", words, tmp_path) for _ in range(2))
    assert first != second
    assert not differences(first, second, [])
    second["metrics"]["rmse"] = np.nextafter(second["metrics"]["rmse"], 1)
    assert [line.split(":")[0] for line in differences(first, second, [])] == ["metrics.rmse"]


@pytest.mark.parametrize("name", ["seconds", "train_seconds", "seconds_by_rank", "seconds_of_search"])
def test_times_are_left_out(name):
    assert not differences({"a": {name: [1.0, 2.0]}}, {"a": {name: [1.5]}}, [])


@pytest.mark.parametrize("name", ["bytes_by_rank", "secondsight", "rank_sizes"])
def test_other_fields_are_compared(name):
    assert differences({"a": {name: [1.0, 2.0]}}, {"a": {name: [1.0, 2.5]}}, [])


def test_a_coefficient_that_differs_is_seen():
    """In its last bit, although predictions may be the same."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    model = FITS["SMOSVR"].make().fit(X, X[:, 0])
    first = described(model, X, X[:, 0])
    coef = next(iter(model.model_.parts.values())).beta
    coef[0] = np.nextafter(coef[0], np.inf)
    fields = [line.split(":")[0] for line in differences(first, described(model, X, X[:, 0]), [])]
    assert "model.parts/000000/beta" in fields


def test_pieces_of_a_long_attribute_are_recorded_as_text(tmp_path):
    """HDF5 holds at most 64 KiB in an attribute: model files cut longer JSON, whose first piece is no JSON."""
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file.attrs["params"], file.attrs["training_rows 0"], file.attrs["training_rows 1"] = '{"C": 1}', '{"a', '": 2}'
    attributes = {"@params": {"C": 1}, "@training_rows 0": '{"a', "@training_rows 1": '": 2}'}
    assert hdf5(tmp_path / "model.h5") == attributes
