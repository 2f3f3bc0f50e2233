"""Random problems for the fuzzer `numbers`: rows of any scale, far from the origin or not, in groups, dense or CSR."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from . import reference

LAYOUTS = ("plain", "plain", "groups", "duplicates", "column", "outlier", "zeros")
TESTED = 40  # rows to predict
DEFINITE = tuple(name for name in reference.KERNELS if name != "sigmoid")


@dataclass
class Problem:
    """Rows, targets and a kernel.

    Attributes
    ----------
    X, T : ndarray or CSR
        Training rows and rows to predict, in the drawn precision.
    exact, tested : ndarray of float64
        The same, dense, as the reference has them: centred, unless the kernel depends on the origin.
    latent : ndarray
        What targets are made of.
    kernel : str
    gamma, degree : parameters of the kernel
    origin : ndarray
        What was subtracted from the rows, in extended precision.
    shown : dict
        The draws, for the line about a bad case.
    """

    X: object
    T: object
    exact: np.ndarray
    tested: np.ndarray
    latent: np.ndarray
    kernel: str
    gamma: float
    degree: int
    origin: np.ndarray
    rng: np.random.Generator
    shown: dict = field(default_factory=dict)

    def matrix(self, A=None, B=None):
        """Kernel values in double precision; of the training rows by default."""
        A, B = (self.exact if rows is None else rows for rows in (A, B))
        return reference.kernel_matrix(self.kernel, A, B, self.gamma, 1.0, self.degree)

    def uncentred(self):
        """Take the rows of the linear kernel as they are, for a problem that centring would change."""
        if self.kernel == "linear":
            self.exact, self.tested = (dense(rows).astype(float) for rows in (self.X, self.T))

    @property
    def parameters(self):
        """Keywords of an SVM for the kernel."""
        return {"kernel": self.kernel, "gamma": self.gamma, "degree": self.degree, "coef0": 1.0}

    def bias(self, b, beta):
        """The bias `b` where the linear kernel's rows are centred; coefficients sum to 0, but for their rounding."""
        support = np.flatnonzero(beta)
        if self.kernel != "linear" or not len(support):
            return float(b)
        rows = self.exact[support].astype("g")
        return float(np.longdouble(b) + self.origin @ ((rows - rows.mean(axis=0)).T @ beta[support].astype("g")))

    @property
    def sigma(self):
        """The width that means this gamma."""
        if self.kernel == "linear":
            return None
        return 1 / self.gamma if self.kernel in reference.LENGTHS else 1 / np.sqrt(2 * self.gamma)

    def labels(self):
        """Two classes with noise, each with two rows at least."""
        y = np.where(self.latent + 0.3 * self.rng.normal(size=len(self.latent)) > np.median(self.latent), 1, -1)
        y[:4] = 1, -1, 1, -1
        return y

    def targets(self):
        """Targets of any size, their deviation, and the same targets centred exactly."""
        size = 10.0 ** self.rng.uniform(-3, 6) if self.rng.random() < 0.5 else 1.0
        offset = size * 10.0 ** self.rng.uniform(0, 9) if self.rng.random() < 0.25 else 0.0
        y = (self.latent + 0.1 * self.rng.normal(size=len(self.latent))) * size + offset
        self.shown |= {"targets": f"{size:.3g} + {offset:.3g}"}
        mean = y.astype("g").mean()
        return y, float(np.std(y - y[0])) or size, (y.astype("g") - mean).astype(float), mean

    def __str__(self):
        return ", ".join(f"{name} {value}" for name, value in self.shown.items())


def drawn(rng, kernels, large=0.06, biased=True, standardized=False):
    """A problem; `large`: share of those with more than 2,000 rows; `biased`: the linear kernel needs no origin."""
    many = rng.random() < large
    n = int(rng.integers(2001, 2500)) if many else round(40 * 10 ** rng.uniform(0, 1))
    d = int(rng.choice([1, 2, 3, 5, 8, 20]))
    kernel, layout = str(rng.choice(kernels)), str(rng.choice(LAYOUTS))
    Z = _latent(layout, n + TESTED, d, rng)
    signal = Z if layout != "column" or d == 1 else Z[:, 1:]
    latent = np.sin(2 * signal[:, 0]) + signal[:, -1] * signal[:, signal.shape[1] // 2]
    if layout == "column":
        Z[:, 0] *= 10.0 ** rng.uniform(1, 5)
    scale = 10.0 ** rng.uniform(-8, 8) if rng.random() < 0.5 else 1.0
    far = rng.random() < 0.4
    reach = 2 if kernel in ("polynomial", "sigmoid") else 9
    offset = np.full(d, far * scale * 10.0 ** rng.uniform(0, reach))
    if far and rng.random() < 0.5:
        offset[rng.permutation(d)[1:]] = 0.0  # one column
    dtype = "f4" if rng.random() < 0.25 else "f8"
    given = (Z * scale + offset).astype(dtype)
    sparse = rng.random() < 0.3 and not standardized
    centre = kernel not in reference.PRODUCTS or (kernel == "linear" and biased)
    about = given[:n] if centre else np.zeros((1, d))
    exact, tested = reference.centred(given[:n], about), reference.centred(given[n:], about)
    if standardized:
        spread = exact.std(axis=0)
        spread[spread == 0] = 1.0
        exact, tested = exact / spread, tested / spread
    wide = 10.0 ** rng.uniform(-1.3, 1)
    size = reference.width(kernel, exact, rng)
    gamma = wide / size if kernel in reference.LENGTHS else wide / size**2
    if kernel == "sigmoid":
        gamma = 0.1 * gamma
    degree = {"polynomial": int(rng.integers(2, 4)), "rational": int(rng.integers(1, 4))}.get(kernel, max(3, d))
    X, T = (sp.csr_matrix(part) if sparse else np.ascontiguousarray(part) for part in (given[:n], given[n:]))
    shown = {"kernel": kernel, "n": n, "d": d, "rows": f"{layout}{' csr' * sparse} {dtype}", "scale": f"{scale:.3g}",
             "offset": f"{offset.max():.3g}{' in one' * bool(far and (offset == 0).any())}",
             "gamma": f"{gamma:.4g} (relative {wide:.3g})", "degree": degree}  # fmt: skip
    return Problem(
        X, T, exact, tested, latent[:n], kernel, float(gamma), degree, about.astype("g").mean(axis=0), rng, shown
    )


def standardizable(problem_rows, dtype):
    """True if rounding leaves the deviation of each column at least three digits."""
    rows = np.asarray(problem_rows, float)
    steps = np.spacing(np.abs(rows).max(axis=0).astype(dtype)).astype(float)
    return bool((rows.std(axis=0) > 1e3 * steps).all())


def _latent(layout, n, d, rng):
    """Rows of deviation about 1."""
    Z = rng.normal(size=(n, d))
    if layout == "groups":
        return Z[rng.integers(max(2, n // 10), size=n)] + 10.0 ** rng.uniform(-8, -1) * rng.normal(size=(n, d))
    if layout == "duplicates":
        return Z[rng.integers(max(2, n // 3), size=n)]
    if layout == "outlier":
        Z[rng.integers(n)] *= 1e4
    if layout == "zeros":
        Z[rng.random((n, d)) < 0.6] = 0.0
    return Z


def dense(X):
    """The rows as an array."""
    return np.asarray(X.todense()) if hasattr(X, "todense") else X
