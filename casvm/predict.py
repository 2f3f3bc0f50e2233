"""``python -m casvm.predict MODEL DATA``: labels by a saved model, on any number of ranks or none."""

from __future__ import annotations

from cacore.run.command import predict
from cacore.run.family import Family
from cacore.run.launch import run

PROG = "casvm.predict"


def _family() -> Family:
    from casvm.family import SupportVectors  # loads compiled code: not for --help

    return SupportVectors()


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(lambda comm: predict(_family, PROG, comm, argv, own=("decisions", "probability")), PROG, argv=argv)


if __name__ == "__main__":
    main()
