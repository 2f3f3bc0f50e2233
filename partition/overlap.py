"""Parts that overlap: each takes in rows of the other parts that lie close to its border as well.

A part's model knows nothing of what lies behind the border of its part, and is at its worst there. With the closest
rows of other parts it learns from a margin as well, and answers for the rows nearest to its centre, as before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.data.selection import smallest
from partition.assign import PartRows
from partition.base import Division


def overlapping(
    X: Rows, division: Division, overlap: float, comm: Communicator
) -> tuple[NDArray[np.int64], Division]:  # fmt: skip
    """Add to each part so many times its own rows, those of other parts that lie closest to it; collective.

    A row x of part p is the closer to part q, the less |x - c_q|^2 - |x - c_p|^2 is: 0 half way between the centres.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows, as they were divided. Not changed.
    division : Division
    overlap : float
        Rows that a part of m rows gets, over m: all of the others where there are no more.
    comm : Communicator

    Returns
    -------
    places : ndarray of int64, shape (m,)
        This rank's rows, each once for its own part, in order, and then once for each part that it is added to.
    Division
        Of these m rows, with sizes that count what was added.

    Notes
    -----
    3 n_local P d flops, and one selection a part (:func:`cacore.data.selection.smallest`): 8 Allreduces of 256 numbers.
    Which rows are added depends neither on the number of ranks nor on how the rows are spread over them in order.
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
