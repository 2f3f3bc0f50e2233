"""When distant rows have kernel values that are negligible, and how many rows are near each other.

Rows are ordered as the leaves of a k-d tree, so that neighbours follow each other. A few consecutive rows then have a
small bounding box (:class:`cacore.near.boxes.Boxes`); two groups with boxes beyond the cutoff radius are skipped.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from cacore.data.rows import Rows, dense
from cacore.kernels import Kernel

VANISHED = 1e-3  # largest change of a gradient by neglected kernel values, as a share of the tolerance
_SAMPLE = 500  # rows from which the share of near pairs is estimated


def share_near(X: Rows, kernel: Kernel, squared: float) -> float:
    """Estimate from a sample the share of pairs of rows within this squared distance, which the kernel defines."""
    step = max(1, X.shape[0] // _SAMPLE)
    some = dense(X[::step]).astype(np.float64)
    norm = "chebyshev" if kernel.separable else "euclidean"  # see cacore.kernels.near
    return float(np.mean(squared >= np.square(cdist(some, some, norm))))
