"""Copy the first N training rows and the test rows, for weak scaling: python -m benchmarks.subset SRC DST.h5 N."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from cacore.errors import InputError
from cacore.io import native


def main() -> None:
    """Copy N training rows and all test rows."""
    source, target, n = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    shapes = native.NativeFile(source).describe()
    if shapes["train"].n < n:
        raise InputError(f"{source}: {shapes['train'].n:,} training rows, but N is {n:,}")
    rows = {split: n if split == "train" else shape.n for split, shape in shapes.items()}
    tables = {
        split: native.NativeFile(source).read_block(split, 0, count, shapes[split].dtype)
        for split, count in rows.items()
    }
    native.write(target, tables, np.dtype(shapes["train"].dtype))


if __name__ == "__main__":
    main()
