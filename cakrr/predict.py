"""``python -m cakrr.predict MODEL DATA``: predictions of a saved model, on any number of ranks or none."""

from __future__ import annotations

from cacore.run.command import predict
from cacore.run.family import Family
from cacore.run.launch import run

PROG = "cakrr.predict"
_OWN = ("probability", "std", "interval", "adaptive")


def _family() -> Family:
    from cakrr.family import Ridge  # loads compiled code: not for --help

    return Ridge()


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    run(
        lambda comm: predict(_family, PROG, comm, argv, own=_OWN),
        PROG,
        argv=argv,
    )


if __name__ == "__main__":
    main()
