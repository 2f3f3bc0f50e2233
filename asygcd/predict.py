"""``python -m asygcd.predict MODEL DATA``: labels by a saved model, on any number of ranks or none."""

from __future__ import annotations

import numpy as np

from asygcd.model import AsyGCDModel
from cacore.comm import Communicator
from cacore.kernels import Kernel
from cacore.run.launch import compiled, run
from cacore.run.predict import command


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: command("asygcd.predict", AsyGCDModel.load, warm_up, comm, argv), "asygcd.predict")


def warm_up(dtype: str, comm: Communicator) -> None:
    """Compile, or load what was compiled, before anything is timed; nothing is trained here."""

    def work() -> None:
        X = np.random.default_rng(0).normal(size=(24, 3)).astype(dtype)
        AsyGCDModel(np.arange(2), "ovr", Kernel(), 1.0, X, np.arange(24), np.ones((24, 1)), None, dtype).predict(X)

    compiled(work, comm)


if __name__ == "__main__":
    main()
