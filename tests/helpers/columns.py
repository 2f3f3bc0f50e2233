"""Files of a function of named columns that counts them very differently: in another order, its error is visible."""

from __future__ import annotations

import h5py
import numpy as np
import pandas as pd

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


def random_table(rng):
    """A random table of numbers and words."""
    n = int(rng.integers(1, 400))
    numbers, categories = {}, {}
    for j in range(rng.integers(1, 5)):
        values = rng.normal(size=n) * 10.0 ** rng.integers(-3, 6)
        values[rng.random(n) < rng.choice([0.0, 0.0, 0.3])] = np.nan
        numbers[f"number {j}"] = values
    for j in range(rng.integers(1, 5)):
        levels = [f"{'äß€x'[k % 4]}{k}" for k in range(int(rng.choice([1, 2, 5, 29, 300])))]
        values = rng.choice(levels, n).astype(object)
        values[rng.random(n) < rng.choice([0.0, 0.0, 0.2])] = None
        categories[f"word {j}"] = values
    names = [*numbers, *categories]
    rng.shuffle(names)
    return pd.DataFrame({**numbers, **categories})[names]
