"""``python -m asygcd.predict MODEL DATA``: labels by a saved model, on any number of ranks or none."""

from __future__ import annotations

from cacore.run.command import predict
from cacore.run.family import Family
from cacore.run.launch import run

PROG = "asygcd.predict"


def _family() -> Family:
    from asygcd.family import AsyGCDFamily  # loads compiled code: not for --help

    return AsyGCDFamily()


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: predict(_family, PROG, comm, argv, own=("decisions", "probability")), PROG, argv=argv)


if __name__ == "__main__":
    main()
