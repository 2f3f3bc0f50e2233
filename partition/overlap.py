"""Overlapping parts: each part also trains on rows of other parts that lie close to its border.

A part's model is least accurate near the border, since it has seen no rows beyond it. Adding the closest rows of the
other parts gives it a margin to learn from. Prediction is unchanged: each model answers for the rows nearest to its
centre.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows
from cacore.data.selection import smallest
from partition.assign import PartRows
from partition.base import Division


def overlapping(
    X: AnyRows, division: Division, overlap: float, comm: Communicator
) -> tuple[NDArray[np.int64], Division]:
    """Add to each part of m rows the ``overlap * m`` closest rows of other parts; collective.

    The distance of a row x of part p from part q is |x - c_q|^2 - |x - c_p|^2, which is 0 half way between the centres.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows, in the order in which they were divided. Not changed.
    division : Division
    overlap : float
        Number of added rows as a multiple of the part's own. If the other parts have fewer rows, all are added.
    comm : Communicator

    Returns
    -------
    places : ndarray of int64, shape (k,)
        Indices of this rank's rows: each once for its own part, in order, then once per part that it is added to.
    Division
        The division of these k rows; its sizes count the added rows.

    Notes
    -----
    3 n_local P d flops. One selection per part (:func:`cacore.data.selection.smallest`): 8 Allreduces of 256 numbers.
    The added rows do not depend on the number of ranks, nor on how the rows, in order, are distributed over them.
    """
    rows = PartRows(X, comm, 0)
    labels, sizes = division.labels, division.sizes.copy()
    own = rows.squared_distances(division.centers, labels)
    places, added = [np.arange(len(rows))], [labels]
    for part, size in enumerate(division.sizes.tolist()):
        others = np.flatnonzero(labels != part)
        count = min(round(overlap * size), rows.n - size)
        closer = rows.squared_distances(division.centers, np.full_like(labels, part))[others] - own[others]
        chosen = others[smallest(closer, count, comm)]
        places.append(chosen)
        added.append(np.full(len(chosen), part, labels.dtype))
        sizes[part] += count
    return np.concatenate(places), replace(division, labels=np.concatenate(added), sizes=sizes)
