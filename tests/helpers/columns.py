"""Files of a function of named columns that counts them very differently: in another order, its error is visible."""

from __future__ import annotations

import h5py
import numpy as np

NAMES = ("a", "b", "c")


def draw(n=150, seed=0):
    """Columns a, b, c and y = 4 a - b^2 + c / 10, by name."""
    X = np.random.default_rng(seed).uniform(-1, 1, (n, 3)).round(3)
    return {**dict(zip(NAMES, X.T, strict=True)), "y": (4 * X[:, 0] - X[:, 1] ** 2 + X[:, 2] / 10).round(6)}


def write_columns(path, table, names, target="y"):
    """A file of these columns of `table`, in this order; a native file has its target apart. Its path."""
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            group = file.create_group("train")
            features = [name for name in names if name != target]
            group["X"] = np.column_stack([table[name] for name in features])
            group["names"] = np.array([name.encode() for name in features])
            if target in names:
                group["y"], group["target_names"] = table[target], np.array([target.encode()])
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: table[name] for name in names}), path)
    elif path.suffix in (".arrow", ".feather"):
        import pyarrow as pa
        from pyarrow import feather

        feather.write_feather(pa.table({name: table[name] for name in names}), str(path))
    else:
        between = "\t" if path.suffix == ".tsv" else ","
        rows = zip(*(table[name].tolist() for name in names), strict=True)
        lines = [between.join(map(str, row)) for row in rows]
        path.write_text("\n".join([between.join(names), *lines]) + "\n")
    return path
