"""Calibrator of a model: turns decisions into probabilities by one sigmoid or one curve per two-class problem.

The probabilities of pairs of classes are coupled by the second method of Wu, Lin and Weng (2004), as in LIBSVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cacore.checks import FORMS
from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.io.model_file import Array, Layout, require
from cacore.probability import isotonic, platt
from cacore.probability.left_out import LeftOutDecisions

LEAST = 1e-7  # smallest probability of a class in a pair, as in LIBSVM
# Systems that are solved at a time: 100,000 rows of 10 classes take 0.25 s with 4 MiB, 0.27 with 1, 0.35 with 32.
_BLOCK_BYTES = 1 << 22


def coupled(pairs: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Probabilities of k classes from those of their pairs.

    Parameters
    ----------
    pairs : ndarray, shape (n, k (k - 1) / 2)
        Probability of the first class of each pair (0, 1), (0, 2), ..., (1, 2), ..., given that the row belongs to one
        of the two.
    k : int

    Returns
    -------
    ndarray, shape (n, k)
        Positive numbers with row sums 1: the p that minimises sum_i sum_{j != i} (r_ji p_i - r_ij p_j)^2, with r_ij the
        probability of class i in its pair with j.

    Notes
    -----
    Q p + b e = 0 and e'p = 1 are solved directly, with Q_ii = sum_j r_ji^2 and Q_ij = -r_ji r_ij: 2/3 (k + 1)^3 flops
    per row. LIBSVM iterates instead, until Q p is constant to 0.005 / k.
    """
    r = np.clip(pairs, LEAST, 1.0 - LEAST)
    if k == 2:
        return np.concatenate([r, 1.0 - r], axis=1)
    out = np.empty((len(r), k))
    step = max(1, _BLOCK_BYTES // (8 * (k + 1) ** 2))
    right = np.zeros((k + 1, 1))
    right[k] = 1.0
    for lo in range(0, len(r), step):
        system = _system(r[lo : lo + step], k)
        out[lo : lo + step] = np.linalg.solve(system, np.broadcast_to(right, (len(system), k + 1, 1)))[:, :k, 0]
    np.maximum(out, np.finfo(np.float64).tiny, out=out)  # positive, except for rounding
    return np.asarray(out / out.sum(axis=1, keepdims=True))


def _system(r: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Matrices Q with a border of ones, shape (n, k + 1, k + 1)."""
    system = np.zeros((len(r), k + 1, k + 1))
    for pair, (i, j) in enumerate(combinations(range(k), 2)):
        p, q = r[:, pair], 1.0 - r[:, pair]
        system[:, i, j] = system[:, j, i] = -p * q
        system[:, i, i] += q**2
        system[:, j, j] += p**2
    system[:, :k, k] = system[:, k, :k] = 1.0
    return system


# Arrays of a model file for p two-class problems: pairs of classes, or each class against the rest.
CALIBRATOR: Layout = {
    "sigmoid_A": Array("float64", ("p",), "A in the probability 1 / (1 + exp(A f + B)) of a decision f", optional=True),
    "sigmoid_B": Array("float64", ("p",), "B in the same formula", optional=True),
    "isotonic_starts": Array("int64", ("p",), "first point of each problem's curve", optional=True),
    "isotonic_x": Array("float64", ("z",), "decisions at the points, ascending in a curve", optional=True),
    "isotonic_p": Array("float64", ("z",), "probabilities at the points", optional=True),
}


@dataclass(eq=False)
class Calibrator:
    """Probability of the first class of each two-class problem, given its decision (large for that class).

    Attributes
    ----------
    form : {"sigmoid", "isotonic"}
    rows : int
        Number of decisions on all ranks to which it was fitted; 0 if unknown.
    A, B : ndarray of float64, shape (p,), or None
        Parameters of the sigmoids.
    steps : Steps or None
        Curves of the isotonic regressions.
    """

    form: str
    rows: int
    A: NDArray[np.float64] | None = None
    B: NDArray[np.float64] | None = None
    steps: isotonic.Steps | None = None

    @classmethod
    def fit(cls, form: str, decisions: LeftOutDecisions, problems: int, comm: Communicator) -> Self:
        """Fit to the decisions of all ranks; collective. See :func:`platt.fit` and :func:`isotonic.fit` for the cost.

        Raises
        ------
        InputError
            On all ranks, if a decision is not finite.
        """
        with comm.agreed():
            if not np.isfinite(decisions.decisions).all():
                raise InputError("probability: decisions overflow; scale the features, or use a smaller C")
        rows = comm.offset(len(decisions.decisions))[1]
        if form == "isotonic":
            return cls(form, rows, steps=isotonic.fit(decisions, problems, comm))
        A, B = platt.fit(decisions, problems, comm)
        return cls(form, rows, A, B)

    def first(self, decisions: NDArray[np.float64], problems: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Probabilities of the first class of each problem, or of the given ones; decisions are in the columns."""
        from scipy.special import expit  # not loaded by commands without probabilities

        which = np.arange(decisions.shape[1]) if problems is None else problems
        if self.A is not None and self.B is not None:
            return np.asarray(expit(-(decisions * self.A[which] + self.B[which])))
        assert self.steps is not None
        curves = [self.steps.at(column, int(at)) for column, at in zip(decisions.T, which, strict=True)]
        return np.stack(curves, axis=1)

    @classmethod
    def of_outputs(
        cls, form: str, outputs: NDArray[np.float64], codes: NDArray[np.int64], comm: Communicator,
        weights: NDArray[np.float64] | None = None,
    ) -> Self:  # fmt: skip
        """Fit to outputs of k classes for held-out rows, with one problem per class against the rest; collective.

        `outputs` has shape (n_local, k), or (n_local, 1) for two classes, where a positive output means the second;
        `codes`, shape (n_local,), are the places of the rows' classes; `weights` are those of the rows.
        """
        k = outputs.shape[1]
        if k == 1:
            decisions = LeftOutDecisions(-outputs[:, 0], codes == 0, np.zeros_like(codes), weights)
        else:
            decisions = LeftOutDecisions.of_classes(outputs, codes, k, weights)
        return cls.fit(form, decisions, k, comm)

    def of_classes(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the classes, shape (n, k), from outputs as in :meth:`of_outputs`."""
        if outputs.shape[1] == 1:
            first = self.first(-outputs)
            return np.concatenate([first, 1.0 - first], axis=1)
        shares = np.maximum(self.first(outputs), LEAST)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    @property
    def steepness(self) -> float:
        """Largest slope of a probability as a function of its decision; infinite for a step."""
        if self.A is not None:
            return float(np.abs(self.A).max(initial=0.0)) / 4.0
        assert self.steps is not None
        curves = [self.steps.curve(problem) for problem in range(len(self.steps.starts))]
        with np.errstate(divide="ignore", invalid="ignore"):
            return max(float((np.diff(p) / np.diff(x)).max(initial=0.0)) for x, p in curves)

    def of_part(self, decisions: LeftOutDecisions) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """A and B of sigmoids for one part, fitted to its decisions with the model's own as prior; None for curves."""
        if self.A is None or self.B is None:
            return None
        return platt.fit(decisions, len(self.A), Communicator(), (self.A, self.B))

    @property
    def problems(self) -> int:
        """Number of two-class problems."""
        if self.A is not None:
            return len(self.A)
        assert self.steps is not None
        return len(self.steps.starts)

    @property
    def arrays(self) -> dict[str, Rows]:
        """The arrays for a model file."""
        if self.A is not None and self.B is not None:
            return {"sigmoid_A": self.A, "sigmoid_B": self.B}
        assert self.steps is not None
        return {"isotonic_starts": self.steps.starts, "isotonic_x": self.steps.x, "isotonic_p": self.steps.p}

    @property
    def attributes(self) -> dict[str, object]:
        """The attributes for a model file."""
        return {"form": self.form, "rows": self.rows}

    @classmethod
    def stored(cls, attributes: dict[str, Any], shared: dict[str, Any]) -> Calibrator | None:
        """The calibrator of a model file, or None; removes its entry from `attributes`."""
        about = attributes.pop("probability", None)
        require(
            about is not None or not any(name in shared for name in CALIBRATOR),
            "arrays of probabilities without their attribute",
        )
        if about is None:
            return None
        require(isinstance(about, dict) and about.get("form") in FORMS, "probabilities of an unknown form")
        form, rows = about["form"], about.get("rows")
        require(isinstance(rows, int) and rows >= 0, f"probabilities from {rows!r} rows")
        need = [name for name in CALIBRATOR if name.startswith(form)]
        require(all(name in shared for name in need), f"{form} probabilities without {', '.join(need)}")
        values = [shared[name] for name in need]
        if form == "sigmoid":
            require(all(np.isfinite(parameter).all() for parameter in values), "sigmoid parameters that are not finite")
            return cls(form, rows, *values)
        curves = cls(form, rows, steps=isotonic.Steps(*values))
        assert curves.steps is not None
        curves.steps.check()
        return curves


NONE = "the model has no probabilities: train it with probability=True, --probability"


def require_calibrator(calibrator: Calibrator | None) -> Calibrator:
    """The calibrator.

    Raises
    ------
    InputError
        If the model has none.
    """
    if calibrator is None:
        raise InputError(NONE)
    return calibrator
