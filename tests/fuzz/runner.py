"""Running the cases of a fuzzer in processes of their own, which may crash or never end, and counting their ends.

A fuzzer is a module with

    FORMS       names of what it tries
    GOOD        the ends that are right; any other says what is wrong
    case(form, number, seed, folder) -> str
                one case and its end; the same arguments do the same
    QUICK       those of the forms that the tests run, if not all
    PATIENCE    seconds a case may compute, if not as many as here
    LIMIT       bytes by which resident memory may grow in a case, if that is to be seen to
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

PATIENCE = 120  # seconds of computing a case; most take milliseconds
_WAITING = 5  # times as many seconds in all: low priority waits for others, and a deadlock computes nothing
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
ROOT = Path(__file__).resolve().parents[2]


def run(name, forms, count, seed):
    """Outcome of each case of the fuzzer `name`, by form; includes "crashed" and "endless"."""
    total, ends = len(forms) * count, []
    while len(ends) < total:
        words = [name, "--work", str(len(ends)), "--cases", str(count), "--seed", str(seed)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.runner", *words, *(f"--form={form}" for form in forms)], cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("case ")]
        if not lines:
            raise RuntimeError(done.stderr)
        died = "endless" if -done.returncode in (signal.SIGALRM, signal.SIGPROF) else "crashed"
        ends += [json.loads(end[0]) if end and end[0] else died for _, *end in lines]
    return {form: ends[k * count : (k + 1) * count] for k, form in enumerate(forms)}


def work(fuzzer, cases, seed, first):
    """Do these cases, pairs of a form and a number, from the first on, and print a line for each."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as name:
        for place in range(first, len(cases)):
            patience = getattr(fuzzer, "PATIENCE", PATIENCE)
            signal.setitimer(signal.ITIMER_PROF, patience)
            signal.alarm(_WAITING * patience)
            print(f"case {place}", end=" ", flush=True)
            before = _resident("VmRSS")
            CLEAR.write_text("5")  # begins a new peak
            try:
                end = fuzzer.case(*cases[place], seed, Path(name))
            except Exception as error:
                end = f"{type(error).__name__}: {' '.join(str(error).split())}"
            grown = _resident("VmHWM") - before
            if place > first and grown > getattr(fuzzer, "LIMIT", grown):  # the first case loads what it needs
                end = f"{end}, but resident memory grew by {grown / (1 << 20):.0f} MiB"
            print(json.dumps(end), flush=True)


def _resident(which):
    """Bytes that are resident now, "VmRSS", or were at the most, "VmHWM"."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--form", action="append")
    parser.add_argument("--work", type=int)
    args = parser.parse_args(argv)
    fuzzer = importlib.import_module(f"tests.fuzz.{args.name}")
    work(fuzzer, [(form, number) for form in args.form for number in range(args.cases)], args.seed, args.work)


if __name__ == "__main__":
    main()
