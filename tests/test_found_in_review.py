"""Mistakes that a reading found; each was shown by one of these tests."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.sparse as sp
from cakrr.cli import main

from cacore.comm import world
from cacore.errors import InputError
from cacore.io.__main__ import main as io_main
from cacore.machine import threads
from cacore.run.launch import Parser
from cakrr import BKRR2, DCKRR, KRRModel, bkrr2, predict

RNG = np.random.default_rng(0)
X = RNG.random((300, 4)) + 1
Y = X.sum(axis=1) + np.sin(4 * X[:, 0])


@pytest.mark.parametrize("make", [BKRR2, DCKRR])
def test_sparse_rows_on_a_model_of_dense_ones(make):
    """The training rows were shifted to their mean: so are rows that come as CSR."""
    model = make(3, random_state=0).fit(X, Y)
    np.testing.assert_allclose(model.predict(sp.csr_matrix(X)), model.predict(X), rtol=1e-10)


def test_validation_is_weighted():
    """Rows of hardly any weight have no say in the choice: wild targets there choose as their absence does."""
    wild = np.concatenate([Y, RNG.normal(0, 1e3, 300)])
    rows, weights = np.concatenate([X, X + 0.01]), np.repeat([1.0, 1e-9], 300)
    grid = {"sigma": [0.01, 2.0], "lam": [1e-6, 1e-3], "random_state": 0}
    model = BKRR2(1, **grid).fit(rows, wild, weights)
    assert model.sigma_ == BKRR2(1, **grid).fit(X, Y).sigma_ == 2.0


def test_integers_into_a_loaded_model(tmp_path):
    BKRR2(2, random_state=0).fit(X, Y).model_.save(tmp_path / "m.h5")
    model = KRRModel.load(tmp_path / "m.h5")
    whole = np.ones((3, 4), int)
    np.testing.assert_array_equal(model.predict(whole), model.predict(whole.astype(float)))
    with pytest.raises(InputError, match="NaN"):
        model.predict(np.full((1, 4), np.nan))


def test_a_model_knows_its_target_column(tmp_path):
    """Rows with the target where it was, and rows without one, get the same answers."""
    with_target, without = tmp_path / "a.csv", tmp_path / "b.csv"
    np.savetxt(with_target, np.column_stack([Y, X]), delimiter=",")
    np.savetxt(without, X, delimiter=",")
    main(bkrr2.METHOD, [str(with_target), "--target", "0", "--sigma", "1", "--lambda", "1e-4", "--quiet",
                        "--model", str(tmp_path / "m.h5")])  # fmt: skip
    outs = []
    for data in (with_target, without):
        out = tmp_path / f"{data.stem}.out.csv"
        predict.main([str(tmp_path / "m.h5"), str(data), "--quiet", "-o", str(out)])
        outs.append(out.read_text())
    assert outs[0] == outs[1]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--seed", "5000000000"], "--seed 5000000000"),
        (["--memory-limit", "-1"], "--memory-limit -1"),
        (["--target", "0"], "--target 0"),
    ],
)
def test_refused_in_one_line(options, named, tmp_path, capsys):
    text = "\n".join(f"{y} 1:{x[0]} 2:{x[1]}" for x, y in zip(X, Y, strict=True))
    (tmp_path / "a.svm").write_text(text)
    with pytest.raises(SystemExit) as caught:
        main(bkrr2.METHOD, [str(tmp_path / "a.svm"), *options])
    lines = capsys.readouterr().err.splitlines()
    assert (caught.value.code, len(lines)) == (2, 1)
    assert named in lines[0]


def test_dropping_duplicates_drops_overlap(tmp_path, capsys):
    for name, rows in (("a", slice(0, 200)), ("b", slice(150, 300))):
        np.savetxt(tmp_path / f"{name}.csv", np.column_stack([X, Y])[rows], delimiter=",")
    io_main(
        [
            "convert",
            str(tmp_path / "a.csv"),
            str(tmp_path / "o.h5"),
            "--test",
            str(tmp_path / "b.csv"),
            "--drop-duplicates",
        ]
    )
    assert "test: 100 rows" in capsys.readouterr().out


def test_started_by_another_mpi(monkeypatch):
    pytest.importorskip("mpi4py.MPI")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(InputError, match="started as 4 ranks, but by another MPI"):
        world()


def test_a_forked_child_can_compute():
    """The pool's threads do not survive a fork."""
    tasks = [(i,) for i in range(8)]
    assert sum(threads.in_order(lambda i: i, tasks)) == 28
    child = os.fork()
    if child == 0:
        os._exit(0 if sum(threads.in_order(lambda i: i, tasks)) == 28 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_usage_errors_are_input_errors():
    with pytest.raises(InputError, match="unrecognized arguments: --nonsense"):
        Parser(prog="x").parse_args(["--nonsense"])


def test_dropping_duplicates_keeps_what_a_libsvm_file_is(tmp_path, capsys):
    """Its width is what its rows use, so the narrower file is filled up, also when its rows were dropped."""
    (tmp_path / "a.svm").write_text("1 1:1 2:2\n1 1:1 2:2\n2 1:4 2:5\n")
    (tmp_path / "b.svm").write_text("3 1:6 3:7\n1 1:1 2:3\n")
    names = [str(tmp_path / name) for name in ("a.svm", "o.h5", "b.svm")]
    io_main(["convert", *names[:2], "--test", names[2], "--drop-duplicates"])
    out = capsys.readouterr().out
    assert "train: 2 rows x 3 features" in out
    assert "test: 2 rows x 3 features" in out
