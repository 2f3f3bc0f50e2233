"""Partitioners by name: the registry, what methods call, a user's own class; and what a run need not import."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import normal_rows
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from cacore.comm import Communicator
from cacore.data.validation import checked_rows
from cacore.errors import InputError
from partition import BY_NAME, FCFS, KMeans, Partitioner
from partition.algorithms import divide, named
from partition.base import REGISTERED

COMM = Communicator()


class Thirds(Partitioner, name="thirds"):
    """A partitioner in one file: by the first feature, in as many intervals as there are parts."""

    def __init__(self, n_parts=3, *, width=1.0, random_state=None):
        super().__init__(n_parts, random_state=random_state)
        self.width = width

    def _partition(self, rows, y):
        labels = np.clip(rows.X[:, 0] // self.width, 0, self.n_parts - 1).astype(np.int32)
        return labels, rows.means(labels, self.n_parts)[0]


@pytest.fixture(scope="module")
def loaded(python):
    """The modules that a program has loaded at its end."""

    def modules(program):
        done = python("-c", f"{program}; import sys; print(*sys.modules)")
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    return modules


@pytest.mark.parametrize("name", BY_NAME)
def test_divides_as_fit_does(name):
    X = normal_rows()
    ours, face = divide(name, 6, X, COMM, 3), BY_NAME[name](6, random_state=3).fit(X)
    assert ours.labels.tobytes() == face.labels_.tobytes()
    assert ours.centers.tobytes() == face.centers_.tobytes()
    assert ours.sizes.tolist() == face.sizes_.tolist()
    assert ours.n_iter == getattr(face, "n_iter_", 0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", BY_NAME)
def test_transform(name, sparse):
    """Distances to the centres, as KMeans of scikit-learn has them: features of a pipeline, with names."""
    X = normal_rows() + (0 if sparse else 1e6)
    rows, make = sp.csr_matrix(X) if sparse else X, BY_NAME[name]
    part = make(5, random_state=3)
    D = part.fit_transform(rows)
    expected = cdist(X, part.centers_)
    assert D.shape == (len(X), 5)
    np.testing.assert_allclose(D, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(D, part.transform(rows))
    np.testing.assert_array_equal(D.argmin(axis=1), part.predict(rows))
    assert part.get_feature_names_out().tolist() == [f"{make.__name__.lower()}{k}" for k in range(5)]
    table = make(5, random_state=3).set_output(transform="pandas").fit(rows).transform(rows[:3])
    assert list(table.columns) == part.get_feature_names_out().tolist()
    with pytest.raises(NotFittedError):
        make(5).transform(rows)


def test_own_class():
    X = 3 * np.abs(normal_rows())
    part = Thirds(4, width=2.0, random_state=0).fit(X)
    by_name, by_instance = divide("thirds", 4, X, COMM, 0), divide(Thirds(width=2.0), 4, X, COMM, 0)
    assert part.transform(X).argmin(axis=1).tolist() == part.predict(X).tolist()
    assert part.get_feature_names_out().tolist() == ["thirds0", "thirds1", "thirds2", "thirds3"]
    assert by_instance.labels.tobytes() == part.labels_.tobytes() != by_name.labels.tobytes()
    assert clone(part).get_params() == {"n_parts": 4, "width": 2.0, "random_state": 0}
    with pytest.raises(InputError, match="151 parts of 150 rows"):
        divide("thirds", 151, X, COMM, 0)


def test_names():
    assert set(BY_NAME) == {"random", "fcfs", "kmeans", "bkm", "kbalance"}
    assert {*BY_NAME, "thirds"} <= set(REGISTERED)
    assert isinstance(named("thirds"), Thirds)
    part = KMeans(3)
    assert named(part) is part
    with pytest.raises(InputError, match=r"partitioner 'voronoi': choose one of .*kbalance"):
        named("voronoi")
    with pytest.raises(ValueError, match="'kbalance': KBalance has this name already"):

        class Other(Partitioner, name="kbalance"):
            pass


@pytest.mark.parametrize("partitioner", ["fcfs", "bkm", FCFS(4)], ids=str)
def test_ratio(partitioner):
    X, y = normal_rows(), np.repeat([0, 1], [50, 100])
    labels = divide(partitioner, 6, X, COMM, 0, y, ratio=True).labels
    assert all(np.ptp(np.bincount(labels[y == value], minlength=6)) <= 1 for value in (0, 1))
    plain = divide(partitioner, 6, X, COMM, 0, y)
    assert plain.labels.tobytes() == divide(partitioner, 6, X, COMM, 0).labels.tobytes() != labels.tobytes()
    if not isinstance(partitioner, str):
        assert partitioner.get_params() == FCFS(4).get_params()


@pytest.mark.parametrize("partitioner", ["random", "kmeans", "kbalance", "thirds"])
def test_ratio_of_others(partitioner):
    with pytest.raises(InputError, match="does not balance classes"):
        divide(partitioner, 2, normal_rows(), COMM, 0, np.zeros(150), ratio=True)


def test_rows_that_can_be_used_as_they_are():
    rows = normal_rows()
    for X in (rows, rows.astype(np.float32), np.asfortranarray(rows), sp.csr_matrix(rows), rows[:0]):
        assert checked_rows(X, ("float64", "float32")) is X
    assert checked_rows(np.asfortranarray(rows), ("float64",), "C").flags.c_contiguous
    for X in (rows.tolist(), rows.astype(">f8"), sp.csc_matrix(rows), rows.astype(np.float32)):
        made = checked_rows(X, ("float64",))
        assert made.dtype == np.dtype("float64")
        assert sp.issparse(made) == sp.issparse(X)
    for X, message in ((np.full((2, 2), np.nan), "NaN"), (np.zeros((3, 0)), "0 feature"), (np.zeros(3), "2D array")):
        with pytest.raises(InputError, match=message):
            checked_rows(X, ("float64",))


def test_dividing_loads_no_sklearn(loaded):
    program = "import numpy as np, cacore.comm as c, partition.algorithms as p; X = np.random.rand(50, 3)"
    found = loaded(f"{program}; [p.divide(name, 3, X, c.Communicator(), 0) for name in p.REGISTERED]")
    assert "numba" in found
    assert not found & {"sklearn", "pandas", "scipy.stats", "joblib"}


def test_reading_loads_what_it_needs(loaded, tmp_path):
    read = "from cacore.io import load; from cacore.comm import Communicator; load({!r}, Communicator())"
    np.savez(tmp_path / "rows.npz", x=normal_rows(), y=np.zeros(150))
    found = loaded(read.format(str(tmp_path / "rows.npz")))
    assert "cacore.io.text" in found
    assert not found & {"sklearn", "h5py", "numba"}


@pytest.mark.parametrize(
    "module", ["partition", "cacore.io", "cacore.io.checkpoint", "cacore.data.rows", "cacore.machine"]
)
def test_light_modules(loaded, module):
    """Modules that the parsers of the commands may import."""
    assert not loaded(f"import {module}") & {"sklearn", "numba", "scipy", "h5py", "mpi4py", "rich"}
