"""``python -m tests.fuzz [NAME ...] [--cases N] [--seed S] [--minutes M]``: a table of what was tried and how it ended.

Without names all fuzzers run. With minutes they run again and again, each round with the next seed: one whole round at
least, and no new form once the minutes are over. Ended early (Ctrl-C), it prints what was tried until then.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
import time
from collections import Counter

from .runner import run

NAMES = (
    "data_files", "models", "commands", "pairs", "columns", "containers", "scales", "numbers", "ranks",
    "files_that_change", "kills",
)  # fmt: skip
# Cases of each form in one round.
MANY = {
    "data_files": 100, "models": 100, "commands": 10, "pairs": 40, "columns": 40, "containers": 100, "scales": 50,
    "numbers": 20, "ranks": 50, "files_that_change": 5, "kills": 1,
}  # fmt: skip


def main():
    """Print a row a form, and what went wrong; the exit status says whether something did."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--cases", type=int, help="of each form, in one round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", help="one form only")
    parser.add_argument("--minutes", type=float, default=0)
    args = parser.parse_args()
    table, wrong = {}, 0
    try:
        for name, form, seed in turns(args):
            fuzzer = importlib.import_module(f"tests.fuzz.{name}")
            counts = table.setdefault((name, form), Counter())
            for number, told in enumerate(run(name, [form], args.cases or MANY[name], seed)[form]):
                good = told in fuzzer.GOOD
                counts[told if good or told in ("crashed", "endless") else "bad"] += 1
                if not good:
                    wrong += 1
                    print(f"{name} {form}, seed {seed}, case {number}: {told}", flush=True)
    finally:
        show(table)
    return int(wrong > 0)


def turns(args):
    """The fuzzer, form and seed of each turn."""
    end = time.monotonic() + 60 * args.minutes
    for seed in itertools.count(args.seed):
        for name in args.names:
            forms = [args.form] if args.form else importlib.import_module(f"tests.fuzz.{name}").FORMS
            for form in forms:
                if seed > args.seed and time.monotonic() >= end:
                    return
                yield name, form, seed
        if time.monotonic() >= end:
            return


def show(table):
    """A row a form, and their sums; columns that are all 0 are left out, but for "bad"."""
    sums = sum(table.values(), Counter())
    columns = [*sorted(set(sums) - {"crashed", "endless", "bad"}), "crashed", "endless", "bad"]
    print(f"{'':34}", *(f"{column:>9}" for column in ("tried", *columns)))
    for title, counts in [*((" ".join(key), counts) for key, counts in table.items()), ("all", sums)]:
        print(f"{title:34}", *(f"{number:9,}" for number in (counts.total(), *(counts[column] for column in columns))))


if __name__ == "__main__":
    sys.exit(main())
