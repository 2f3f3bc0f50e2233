"""``python -m asygcd.predict MODEL DATA``: labels by a saved model, on any number of ranks or none."""

from __future__ import annotations

from asygcd.cli import warm_up
from asygcd.model import AsyGCDModel
from cacore.launch import run
from cacore.predicting import command


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: command("asygcd.predict", AsyGCDModel.load, warm_up, comm, argv), "asygcd.predict")


if __name__ == "__main__":
    main()
