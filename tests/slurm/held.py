"""cakrr.bkrr2 whose ranks, once they have finished a part, wait for as long as there is a file: python -m held ...

A test that ends a run in the middle does not depend on how fast the machine is.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path

from cacore.io import checkpoint

_put = checkpoint.Checkpoint.put


def _put_and_wait(self, name, **arrays):
    _put(self, name, **arrays)
    while Path(os.environ["HOLD"]).exists():
        time.sleep(0.1)


if __name__ == "__main__":
    checkpoint.Checkpoint.put = _put_and_wait
    runpy.run_module("cakrr.bkrr2", run_name="__main__", alter_sys=True)
