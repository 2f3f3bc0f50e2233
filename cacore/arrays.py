"""Names of the array types that compiled functions take, for annotations alone.

They say the data type; the docstrings say the shapes. Within one call all `Reals` have the same type, which is that of
the kernel values: numba compiles each function once for single and once for double precision.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.floating]  # float32 or float64
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]  # numbers of columns
Longs = NDArray[np.int64]  # numbers of rows, counts
Unsigned = NDArray[np.uint32]  # numbers of columns that need no check for a sign
Integers = NDArray[np.signedinteger]  # int32 or int64: starts of CSR rows and of lists
Bytes = NDArray[np.uint8]  # text, or flags that are bits
Flags = NDArray[np.bool_]


def usual_errors() -> np.errstate:
    """Context in which numpy treats floating-point errors by its defaults, whatever the caller chose by ``seterr``.

    Underflow is harmless here, and overflow is looked for where it matters.
    """
    return np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
