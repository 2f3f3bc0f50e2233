"""Error against seconds: the search of `cakernels fit` beside a random search among the same candidates.

python -m benchmarks.anytime DATA_FOLDER [--only NAME ...] [--within S] [--seeds N] [--max-candidates N]

Both searches have the same training rows, held-out rows, score, time limit and last training. The random search draws
its candidates uniformly, without replacement, from all that the search can reach, and trains each of them on all
training rows at once. The order of the two alternates from seed to seed. --max-candidates ends each search after so
many candidates instead, whatever time they take.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np

from benchmarks.generated import label
from benchmarks.krr_data import SETS, Split, load, split
from benchmarks.race import headline, machine_rate
from benchmarks.results import Record, about, record, table
from cacore.comm import Communicator
from cakernels.families import blended
from cakernels.search import data as rows
from cakernels.search.blending import search
from cakernels.search.candidates import Candidate, first, further
from cakernels.search.race import Race
from cakernels.search.scores import SCORES
from cakernels.search.trial import Budget

SHARES = (0.1, 0.25, 0.5, 1.0)  # of the time, at which the table has the best error so far
_DRAWS = 200  # neighbours drawn per candidate to list them all
_WARM = 3_000  # rows of a search before the first one that is measured
AT = [f"at {share:.0%}" for share in SHARES]
COLUMNS = {
    "data": "", "search": "", "seed": "", "trainings": "", **dict.fromkeys(AT, ".4g"), "test_rmse": ".4g",
    "below": ".0%",
}  # fmt: skip


def space(data: rows.Data) -> list[Candidate]:
    """Every candidate that a search can reach from the first ones by changes, in the order of their names."""
    rng = np.random.default_rng(0)
    found = {one.key: one for one in (one.of(data.n) for one in first(data))}
    waiting = list(found.values())
    while waiting:
        for near in itertools.islice(further(data, [waiting.pop()], rng), _DRAWS):
            near = near.of(data.n)
            if near.key not in found:
                found[near.key] = near
                waiting.append(near)
    return sorted(found.values(), key=lambda one: one.name)


class RandomSearch(Race):
    """Candidates in random order, each trained on all training rows at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known = space(self.data)

    def run(self) -> None:
        """Try candidates until the time, or the number of candidates, is over."""
        for i in np.random.default_rng(self.seed).permutation(len(self.known))[: self.max_candidates]:
            remaining = self.budget.remaining()
            if remaining is not None and remaining <= self.reserve():
                return
            self.trials.append(self.tried(self.known[i], self.split.n_train))


KINDS: dict[str, type[Race]] = {"halving": Race, "random": RandomSearch}


def run(kind: str, sample: Split, seed: int, within: float | None, most: int | None) -> Record:
    """Search on the training rows; the best error so far after each training, and the error of the test rows."""
    comm, score = Communicator(), SCORES["rmse"]
    data = rows.Data.of(sample.X, sample.y, None, rows.REGRESSION, comm)
    race = KINDS[kind](data, rows.Split.of(data, seed, comm), score, Budget(None), comm, None, seed, most)
    race.budget = Budget(within)  # begins when the candidates are known
    found = search(race)
    seconds = race.budget.spent(comm)
    model = blended([one.model_ for one in found.estimators], found.weights, None)
    errors = [trial.error if np.isfinite(trial.error) else None for trial in race.trials]
    return {
        "search": kind, "seed": seed, "ended": [trial.ended for trial in race.trials], "errors": errors,
        "rows": [trial.rows for trial in race.trials], "folds": race.folds, "seconds": seconds,
        "test_rmse": float(np.sqrt(np.mean((model.predict(sample.T) - sample.t) ** 2))),
    }  # fmt: skip


def best_at(found: Record, seconds: np.ndarray) -> np.ndarray:
    """The smallest error of all trainings that ended by each of these times; infinite before the first one."""
    errors = np.array([np.inf if one is None else one for one in found["errors"]])
    best = np.append(np.inf, np.minimum.accumulate(errors))
    return np.asarray(best[np.searchsorted(found["ended"], seconds, side="right")])


def below(found: Record, other: Record) -> float:
    """Share of the time, from the first result of either on, in which this best error is not above the other's."""
    ends = np.unique([*found["ended"], *other["ended"]])
    mine, theirs = best_at(found, ends), best_at(other, ends)
    known = np.isfinite(mine) | np.isfinite(theirs)
    lasts = np.diff(ends, append=ends[-1])[known]
    return float(lasts @ (mine <= theirs)[known] / lasts.sum()) if lasts.sum() else 1.0


def line(found: Record, seconds: float) -> Record:
    """Line of the table: the best errors at shares of the time."""
    at = best_at(found, seconds * np.array(SHARES))
    return found | {"trainings": len(found["ended"])} | dict(zip(AT, at.tolist(), strict=True))


def main() -> None:
    """Print one line per search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=["cadata"])
    parser.add_argument("--within", type=float, default=300.0, metavar="S", help="seconds of each search")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--max-candidates", type=int, metavar="N", help="of each search, which then has no time limit")
    args = parser.parse_args()
    within = None if args.max_candidates else args.within
    headline()
    about(within=within)
    lines: list[Record] = []
    for name in args.only:
        X, y = load(args.data, name)
        if within is not None:  # compile and load what the searches use before their time begins
            run("halving", split(X[:_WARM], y[:_WARM], 0), 0, None, 2)
        for seed in range(args.seeds):
            sample, kinds = split(X, y, seed), list(KINDS)[:: 1 if seed % 2 == 0 else -1]
            pair = {kind: run(kind, sample, seed, within, args.max_candidates) for kind in kinds}
            last = within or max(one["ended"][-1] for one in pair.values())
            for kind, other in (("halving", "random"), ("random", "halving")):
                found = {"data": label(args.data, name), **pair[kind], "below": below(pair[kind], pair[other])}
                record(**found)
                lines.append(line(found, last))
    print(
        "rmse on held-out rows, the best so far at shares of the time, and on test rows; below: share of the time at or"
    )
    print(f"below the other search's error; matrix product afterwards {machine_rate():.0f} GFLOP/s")
    print(table(lines, COLUMNS))


if __name__ == "__main__":
    main()
