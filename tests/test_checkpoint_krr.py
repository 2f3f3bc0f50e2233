"""Ridge regressions with a checkpoint: an interrupted run resumes to the same bits, and another run is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import names
from helpers.checks import refusal as refused
from helpers.data import saddle
from helpers.running import Interrupted, interruptible

from cacore.io import Dataset
from cacore.io.checkpoint import Checkpoint
from cakrr import bkrr2, dckrr, kkrr2, twolevel
from cakrr.options import RidgeOptions
from cakrr.solver import coarse
from cakrr.solver.local import PartSystem


def train(method, options, path=None, data=None, weights=None, test=None):
    X, y = saddle(90) if data is None else data
    kept = None if path is None else Checkpoint(path)
    return method(Dataset(X.copy(), y, weights=weights), replace(options, checkpoint=kept), test=test)


GRID = RidgeOptions(partitions=4, sigma=(0.5, 1.5), lam=(1e-4, 1e-2), seed=1)
LEVELS = replace(GRID, centers=(5, 15), coarse_sigma=(1.5,), coarse_lam=(1e-4,))
# The method, its options, and how many systems a whole run makes: one a part and stage.
RUNS = {
    "one pair": (bkrr2.METHOD, replace(GRID, sigma=(1.0,), lam=(1e-3,)), 4),
    "grid": (bkrr2.METHOD, GRID, 8),
    "band": (bkrr2.METHOD, replace(GRID, lam=tuple(np.geomspace(1e-5, 1, 7))), 8),
    "soft": (kkrr2.METHOD, replace(GRID, route="soft"), 12),
    "mean of all": (dckrr.METHOD, GRID, 8),
    "loo": (bkrr2.METHOD, replace(GRID, select="loo"), 8),
    "two levels": (twolevel.METHOD, LEVELS, 12),
}


@pytest.fixture
def systems(monkeypatch):
    """Counts the systems that are made; the one numbered `last` fails. One thread, so that they come in order."""
    return interruptible(monkeypatch, PartSystem, "__init__")


def same(one, other):
    """Bit for bit the same model, and the same errors on the way to it."""
    assert (one.model.sigma, one.model.lam, one.model.soft) == (other.model.sigma, other.model.lam, other.model.soft)
    assert one.grid == other.grid
    assert one.params == other.params
    assert one.model.parts.keys() == other.model.parts.keys()
    for part, model in one.model.parts.items():
        assert model.alpha.tobytes() == other.model.parts[part].alpha.tobytes()
    if one.model.coarse is not None:
        assert one.model.coarse.beta.tobytes() == other.model.coarse.beta.tobytes()


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("name", RUNS)
def test_interrupted_anywhere(name, weighted, systems, tmp_path):
    """A run that ends after k systems goes on with the next one, and ends with the same bits."""
    method, options, total = RUNS[name]
    w = np.random.default_rng(0).uniform(0.5, 2, 90) if weighted else None
    undisturbed = train(method, options, weights=w)
    assert systems.made == total
    for k in sorted({0, 1, 3, total // 2, total - 1}):
        path = tmp_path / str(k)
        systems.made, systems.last = 0, k
        with pytest.raises(Interrupted):
            train(method, options, path, weights=w)
        assert len([p for p in names(path) if p.startswith(("grid-", "soft-", "part-"))]) == k
        assert not list(path.glob(".*"))
        systems.made, systems.last = 0, -1
        same(train(method, options, path, weights=w), undisturbed)
        assert systems.made == total - k
        systems.made = 0
        same(train(method, options, path, weights=w), undisturbed)
        assert systems.made == 0


def test_with_a_checkpoint_as_without(tmp_path):
    """On as many threads as there are."""
    undisturbed = train(bkrr2.METHOD, GRID)
    for _ in range(2):
        same(train(bkrr2.METHOD, GRID, tmp_path), undisturbed)


def test_coarse_model_is_made_once(systems, tmp_path, recorded):
    calls = recorded(coarse, "_normal_equations")
    systems.last = 2
    with pytest.raises(Interrupted):
        train(twolevel.METHOD, LEVELS, tmp_path)
    assert len(calls) == 1
    assert "coarse.npz" in names(tmp_path)
    systems.last = -1
    train(twolevel.METHOD, LEVELS, tmp_path)
    assert len(calls) == 1


def test_pieces_taken_out_are_made_again(systems, tmp_path):
    undisturbed = train(bkrr2.METHOD, GRID, tmp_path)
    systems.made = 0
    (tmp_path / "grid-000002.npz").unlink()
    (tmp_path / "part-000000.npz").write_bytes(b"PK")
    assert "part-000000.npz: damaged" in refused(train, bkrr2.METHOD, GRID, tmp_path)
    (tmp_path / "part-000000.npz").unlink()
    same(train(bkrr2.METHOD, GRID, tmp_path), undisturbed)
    assert systems.made == 2


def test_unsolvable_pairs_are_remembered(systems, tmp_path):
    """A part without a solution is remembered as one."""
    X, y = np.tile(saddle(30)[0], (3, 1)), np.arange(90.0)
    options = replace(GRID, partitions=2, sigma=(1.0,), lam=(1e-25,))
    first = refused(train, bkrr2.METHOD, options, tmp_path, (X, y))
    systems.made = 0
    assert refused(train, bkrr2.METHOD, options, tmp_path, (X, y)) == first
    assert systems.made == 0


def changed_row():
    X, y = saddle(90)
    X[40, 1] = np.nextafter(X[40, 1], np.inf)
    return X, y


def changed_target():
    X, y = saddle(90)
    return X, np.where(np.arange(90) == 40, y + 1e-9, y)


OTHER = {
    "seed": ({"seed": 2}, {}),
    "sigma": ({"sigma": (0.5, 1.6)}, {}),
    "lam": ({"lam": (1e-4,)}, {}),
    "partitions": ({"partitions": 3}, {}),
    "standardize": ({"standardize": False}, {}),
    "route": ({"route": "soft"}, {}),
    "select": ({"select": "loo"}, {}),
    "kernel": ({"kernel": "polynomial"}, {}),
    "degree": ({"degree": 2}, {}),
    "coef0": ({"coef0": 1.0}, {}),
    "validation_fraction": ({"validation_fraction": 0.2}, {}),
    "training rows": ({}, {"data": changed_row()}),
    "training rows (target)": ({}, {"data": changed_target()}),
    "training rows (order)": ({}, {"data": tuple(values[::-1] for values in saddle(90))}),
    "training rows (weights)": ({}, {"weights": np.ones(90)}),
    "features": ({}, {"data": (np.column_stack([saddle(90)[0], np.ones(90)]), saddle(90)[1])}),
    "dtype": ({}, {"data": (saddle(90)[0].astype(np.float32), saddle(90)[1])}),
    "method": ({}, {"method": kkrr2.METHOD}),
}


@pytest.mark.parametrize("what", OTHER)
def test_another_run_is_refused(what, tmp_path, systems):
    train(bkrr2.METHOD, GRID, tmp_path)
    before, systems.made = names(tmp_path), 0
    options, given = OTHER[what]
    message = refused(
        lambda: train(**{"method": bkrr2.METHOD, **given}, options=replace(GRID, **options), path=tmp_path)
    )
    assert f"a checkpoint of another run: {what.split(' (')[0]} was " in message
    assert (systems.made, names(tmp_path)) == (0, before)


def test_other_weights_are_another_run(tmp_path):
    w = np.linspace(1, 2, 90)
    train(bkrr2.METHOD, GRID, tmp_path, weights=w)
    for other in (w[::-1].copy(), 2 * w, None):
        message = refused(lambda other=other: train(bkrr2.METHOD, GRID, tmp_path, weights=other))
        assert "another run: training rows was" in message
    train(bkrr2.METHOD, GRID, tmp_path, weights=w)


def test_another_coarse_model_is_another_run(tmp_path):
    train(twolevel.METHOD, LEVELS, tmp_path)
    for name, value in (("centers", (5,)), ("coarse_sigma", (1.6,)), ("coarse_lam", None)):
        other = replace(LEVELS, **{name: value})
        assert f"another run: {name} was" in refused(train, twolevel.METHOD, other, tmp_path)


def test_test_rows_count_where_they_choose(tmp_path):
    options, (T, t) = replace(GRID, select="test"), saddle(20, 1)
    for path, chosen, message in (("a", options, "another run: test rows was"), ("b", GRID, None)):
        tests = [Dataset(T.copy(), t + shift, 20, "test rows") for shift in (0, 0, 1)]
        for test in tests[:2]:
            train(bkrr2.METHOD, chosen, tmp_path / path, test=test)
        if message is None:
            train(bkrr2.METHOD, chosen, tmp_path / path, test=tests[2])
        else:
            assert message in refused(lambda c=chosen, p=path, t=tests[2]: train(bkrr2.METHOD, c, tmp_path / p, test=t))


def test_other_threads_are_another_run(tmp_path, tuned):
    """Their sums come in another order: the last bits of what is kept."""
    for count in (1, 2):
        tuned(threads=count)
        if count == 1:
            train(bkrr2.METHOD, GRID, tmp_path)
        else:
            assert "another run: threads was 1 there and is 2 here" in refused(train, bkrr2.METHOD, GRID, tmp_path)


def test_harmless_options_may_differ(tmp_path, systems):
    """Free memory and the progress display may differ; CSR rows with the same numbers are the same rows."""
    first = train(bkrr2.METHOD, replace(GRID, standardize=False), tmp_path)
    told = []

    def watched(*what):
        told.append(what)
        return lambda *steps: None

    options = replace(GRID, standardize=False, memory_limit=1 << 33, progress=watched)
    systems.made = 0
    same(train(bkrr2.METHOD, options, tmp_path), first)
    assert (systems.made, len(told)) == (0, 2)
    X, y = saddle(90)
    same(train(bkrr2.METHOD, options, tmp_path, (sp.csr_matrix(X), y)), first)
    assert "memory_limit" not in json.loads((tmp_path / "run.json").read_text())


@pytest.mark.parametrize("name", ["partitions", "seed"])
def test_whole_numbers_of_numpy(name, tmp_path):
    options = replace(GRID, **{name: np.int64(getattr(GRID, name))})
    same(train(bkrr2.METHOD, options, tmp_path), train(bkrr2.METHOD, GRID))
    train(bkrr2.METHOD, GRID, tmp_path)
