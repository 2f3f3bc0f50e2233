"""The exact method by conjugate gradients over all ranks against scikit-learn's KernelRidge on all rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close
from helpers.data import formats
from helpers.data import smooth as rows
from helpers.distributed import RANK, WORLD, R, by_one, dataset, even, refused_by_all
from helpers.dkrr import times_computed
from helpers.references import matrix, ridge
from helpers.running import Clock
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.linalg.pivoted import pivoted_cholesky
from cakrr import DKRR
from cakrr.dkrr import dkrr
from cakrr.iterative import cost, solver
from cakrr.iterative.preconditioner import SpreadRows
from cakrr.iterative.products import Keep, KernelProducts
from cakrr.methods.whole_system import SettledErrors, fit
from cakrr.options import RidgeOptions

pytestmark = pytest.mark.mpi(min_size=1)
SIGMA, LAM = 1.5, 1e-3
TOLD = RidgeOptions(sigma=(SIGMA,), lam=(LAM,), solver="cg", tol=1e-10, seed=2)


def kernel_ridge(X, y, T, weights=None):
    """The reference, on the rows of all ranks."""
    w = np.ones(len(y)) if weights is None else weights
    scaler, mean = StandardScaler(with_mean=not sp.issparse(X)).fit(X, sample_weight=weights), np.average(y, weights=w)
    model = by_one(ridge(SIGMA, LAM * w.sum()).fit, scaler.transform(X), y - mean, sample_weight=weights)
    return model.predict(scaler.transform(T)) + mean


@pytest.fixture(autouse=True)
def tiles(tuned):
    """Several tiles a rank."""
    tuned(tile_rows=20, tile_columns=17)


@formats
@pytest.mark.parametrize("ring", [False, True], ids=["gathered", "ring"])
def test_is_kernel_ridge(csr, ring, mine, everywhere, tuned):
    if ring:
        tuned(gathers=lambda *_: False)
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    comm = Communicator(WORLD)
    result = dkrr(dataset(X, y, mine(157)), TOLD, comm)
    close(everywhere(result.model.predict(T[mine(41)], comm)), kernel_ridge(X, y, T), 1e-7)
    assert result.residual[0] <= 1e-10
    assert result.iteration["stopped"] == ["residual"]
    sent = result.iteration["solutions"][-1]["bytes"]
    assert sent["sent"] == sent["predicted"]
    assert (sent["sent"] > 0) == (R > 1)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fewer_rows_than_ranks(n, everywhere):
    (X, y), (T, _) = rows(n), rows(41, seed=1)
    comm = Communicator(WORLD)
    model = dkrr(dataset(X, y, even(n)), TOLD, comm).model
    close(everywhere(model.predict(T[even(41)], comm)), kernel_ridge(X, y, T), 1e-7)


@pytest.mark.parametrize("preconditioner", ["pivoted", "nystrom", "local", "two-level"])
def test_preconditioners_with_weights_and_targets(preconditioner, everywhere):
    """Rows of weight 0 count as absent; two targets at once are what each is alone."""
    (X, y), (T, _) = rows(), rows(41, seed=1)
    weights = np.random.default_rng(4).integers(0, 3, 157) * 0.7
    told = {"sigma": SIGMA, "lam": LAM, "solver": "cg", "tol": 1e-10, "preconditioner": preconditioner, "comm": WORLD}
    Y = np.c_[y, np.cos(3 * y)]
    my = even(157)
    fitted = DKRR(**told, rank=20).fit(X[my], Y[my], weights[my])
    got = everywhere(fitted.predict(T[even(41)]))
    kept = weights > 0
    for j in range(2):
        close(got[:, j], kernel_ridge(X[kept], Y[kept, j], T, weights[kept]), 1e-7)
    assert fitted.residual_ <= 1e-10
    assert fitted.n_iter_ >= 1


def gathered_bytes(X, ring):
    """Bytes that the ranks send before a product: all rows once; around the ring, CSR rows' number of nonzeros."""
    if R == 1 or ring:
        return 8 * R if R > 1 and sp.issparse(X) else 0
    return 8 * X.shape[0] + X.nnz * (8 + X.dtype.itemsize) if sp.issparse(X) else X.nbytes


@pytest.mark.parametrize(("ring", "csr"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("single", [True, False])
def test_products_and_their_bytes(ring, csr, single, mine, everywhere):
    """K times vectors, of rows with weights; what the ranks send is the formula, and each value is computed once."""
    X, _ = rows(csr=csr)
    X = StandardScaler(with_mean=False).fit_transform(X)
    weights, V = np.random.default_rng(1).uniform(0.5, 2, 157), np.random.default_rng(2).normal(size=(4, 157))
    my, kernel, comm = mine(157), Kernel.gaussian(SIGMA), Communicator(WORLD)
    spread = SpreadRows(X[my], np.arange(157)[my], kernel, comm, weights[my])
    with comm.phase("partition"):
        made = KernelProducts(spread, kernel, Keep(1 << 20), ring)
    out = None
    for _ in range(2):
        with comm.phase("train"):
            out = made(V[:, my], single)
    sent = [WORLD.allreduce(int(comm.sent(phase)[0].sum())) for phase in ("partition", "train")]
    s = np.sqrt(weights / weights.mean())
    want = V * s @ matrix(kernel, X) * s
    close(everywhere(np.ascontiguousarray(out.T)), want.T, 1e-3 if single else 1e-12)
    assert sent == [gathered_bytes(X, ring), 2 * made.predicted_bytes(4, single)]
    assert (sent[1] > 0) == (R > 1)


@pytest.mark.parametrize(("csr", "weighted"), [(False, True), (True, False)])
def test_pivots_do_not_depend_on_the_ranks(csr, weighted, mine, everywhere):
    """Nor does the factor, but for rounding; what the ranks send is the formula."""
    X, _ = rows(csr=csr)
    X = StandardScaler(with_mean=False).fit_transform(X)
    weights = np.random.default_rng(1).uniform(0.5, 2, 157) if weighted else None
    my, kernel, comm = mine(157), Kernel.gaussian(SIGMA), Communicator(WORLD)

    def factor(my, comm):
        some = SpreadRows(X[my], np.arange(157)[my], kernel, comm, None if weights is None else weights[my])
        with comm.phase("train"):
            return pivoted_cholesky(some, kernel, 60, 3, lambda traces: False, np.float64)

    found, alone = factor(my, comm), factor(slice(None), Communicator())
    assert found.pivots.tolist() == alone.pivots.tolist()
    np.testing.assert_allclose(everywhere(np.ascontiguousarray(found.rows.T)), alone.rows.T, atol=1e-7)
    assert WORLD.allreduce(int(comm.sent("train")[0].sum())) == found.sent


def test_every_pair_of_rows_once():
    counts = np.array([45, 0, 30, 82, 1])[:R] if R > 1 else np.array([45])
    assert (times_computed(counts) == 1).all()


# -- the grid ----------------------------------------------------------------------------------

GRID = replace(TOLD, sigma=(0.5, 1.5), lam=(1e-5, 1e-2))


def test_grid(mine):
    """The choice and the errors are those of one rank, and those of the factorisation."""
    X, y = rows()
    result = dkrr(dataset(X, y, mine(157)), GRID, Communicator(WORLD))
    alone = by_one(dkrr, dataset(X, y), GRID)
    direct = by_one(dkrr, dataset(X, y), replace(GRID, solver="cholesky", tol=RidgeOptions().tol))
    for other, tolerance in ((alone, 1e-3), (direct, 1e-3)):
        assert (result.model.sigma, result.model.lam) == (other.model.sigma, other.model.lam)
        errors = [[g["validation_mse"] for g in one.grid] for one in (result, other)]
        np.testing.assert_allclose(*errors, rtol=tolerance)


def test_early():
    """It takes fewer iterations, for nearly the same error."""
    X, y = rows(53)
    told = replace(GRID, rank=8, tol=1e-6)
    whole, early = (
        dkrr(dataset(X, y, even(53)), replace(told, early=share), Communicator(WORLD)) for share in (None, 0.05)
    )
    assert early.iteration["iterations"][0] < whole.iteration["iterations"][0]
    assert told.tol < early.residual[0] <= early.iteration["tol"]
    least = [min(g["validation_mse"] for g in one.grid) for one in (whole, early)]
    np.testing.assert_allclose(*least, rtol=0.1)


@pytest.mark.parametrize("early", [None, 0.01])
def test_resumed(early, folder, tuned):
    """Stopped between two iterations, it goes on from there, and ends with the same bits."""
    tuned(save_every=0.0)
    options = replace(GRID, sigma=GRID.sigma[:1], rank=10, tol=1e-6, early=early)

    def stopping(after):
        seen = iter(range(10**6))

        def begin(what, total):
            def advance(*_, **__):
                if next(seen) == after:
                    raise KeyboardInterrupt

            return advance

        return begin

    def again(**more):
        return fit(dkrr, dataset(*rows(), even(157)), replace(options, **more), Communicator(WORLD))

    undisturbed = again()
    for after in (3, 5):  # of the iterations that a run still has to make
        with pytest.raises(KeyboardInterrupt):
            again(checkpoint=Checkpoint(folder / "kept"), progress=stopping(after))
        WORLD.Barrier()
    resumed = again(checkpoint=Checkpoint(folder / "kept"))
    assert resumed.grid == undisturbed.grid
    for part, model in undisturbed.model.parts.items():
        np.testing.assert_array_equal(resumed.model.parts[part].alpha, model.alpha)


def test_time_and_again(folder, mine, monkeypatch):
    """A run that its time limit ended resumes when it is started again."""
    X, y = rows()
    told = replace(TOLD, rank=20, checkpoint=Checkpoint(folder / "kept"))
    with monkeypatch.context() as patch:
        patch.setattr(solver, "working_time", Clock(12.0).perf_counter)
        late = dkrr(dataset(X, y, mine(157)), replace(told, max_time=100.0), Communicator(WORLD))
    done = dkrr(dataset(X, y, mine(157)), told, Communicator(WORLD))
    assert (late.iteration["stopped"], done.iteration["stopped"]) == (["time"], ["residual"])
    assert done.residual[0] <= 1e-10


def test_time(mine, tuned):
    """A partial solution at the time limit is used, with a note on its residual; x = 0 is refused."""
    X, y = rows()
    told = replace(TOLD, max_time=100.0, rank=20)
    tuned(cg_clock=Clock(12.0).perf_counter)
    result = dkrr(dataset(X, y, mine(157)), told, Communicator(WORLD))
    (note,) = result.notes
    assert "--max-time 100 was exceeded: the relative residual is" in note
    assert 1e-10 < result.residual[0] < 1
    tuned(cg_clock=Clock(1e9).perf_counter)
    refused("before there was a useful solution", dataset(X, y, mine(157)), told)


def test_checkpoint_pairs_of_other_choices_are_ignored(folder, monkeypatch):
    """A checkpoint's piece of one pair's solution is not used for another pair."""
    told = replace(TOLD, checkpoint=Checkpoint(folder / "kept"), sigma=(0.5, 1.5))
    first = [fit(dkrr, dataset(*rows(), even(157)), told, Communicator(WORLD)).model.sigma]
    width = next(one for one in told.sigma if one != first[0])
    monkeypatch.setattr("cakrr.methods.factored.best", lambda *_: (0, told.sigma.index(width), 0))
    other = fit(dkrr, dataset(*rows(), even(157)), told, Communicator(WORLD)).model
    alone = fit(dkrr, dataset(*rows(), even(157)), replace(TOLD, sigma=(width,)), Communicator(WORLD)).model
    for part, model in alone.parts.items():
        np.testing.assert_allclose(other.parts[part].alpha, model.alpha, rtol=1e-6, atol=1e-6)


def test_ranks_stop_together(mine, monkeypatch, tuned):
    """Where rounding makes the ranks disagree on the rank of the factor, or on who may stop early, rank 0's counts."""
    X, y = rows()
    monkeypatch.setattr(cost, "enough", lambda work, traces: traces[-1][0] >= 8 * (1 + RANK))
    tuned(pivot_block=8)
    settled = SettledErrors._settled
    monkeypatch.setattr(SettledErrors, "_settled", lambda *told: settled(*told) | (RANK == 0))
    result = dkrr(dataset(X, y, mine(157)), replace(GRID, early=0.01), Communicator(WORLD))
    solutions = result.iteration["solutions"]
    assert [set(one["stopped"]) for one in solutions[:2]] == [{"early"}] * 2
    assert all(one["bytes"]["sent"] == one["bytes"]["predicted"] for one in solutions)
    assert {one["rank"] for one in solutions} <= set(range(8, 17))


# -- refusals ----------------------------------------------------------------------------------


def refused(message, data, options):
    refused_by_all(dkrr, data, options, Communicator(WORLD), match=message)


def test_memory(mine):
    X, y = rows()
    refused("vectors of a system of 157 rows.*GiB", dataset(X, y, mine(157)), replace(TOLD, memory_limit=10_000))


def test_rank_that_does_not_fit(mine):
    X, y = rows()
    refused(
        "rank 150.*the largest that fits is", dataset(X, y, mine(157)), replace(TOLD, rank=150, memory_limit=500_000)
    )


@pytest.mark.parametrize("told", [{"lam": (1e-25,)}, {"sigma": (1e6,), "lam": (1e-17,)}])
def test_singular(told, mine):
    X, y = rows(50)
    X, y = np.tile(X, (3, 1)), np.concatenate([y, -y, 2 * y])
    refused("use a larger lambda", dataset(X, y, mine(150)), replace(TOLD, **told))
