"""``python -m casvm.predict MODEL DATA``: labels by a saved model, on any number of ranks or none."""

from __future__ import annotations

from cacore.run.launch import run
from cacore.run.predict import command
from casvm.cli import warm_up
from casvm.model.model import SVMModel


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: command("casvm.predict", SVMModel.load, warm_up, comm, argv), "casvm.predict")


if __name__ == "__main__":
    main()
