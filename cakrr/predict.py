"""``python -m cakrr.predict MODEL DATA``: predictions of a saved model, on any number of ranks or none."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.run.launch import run

PROG = "cakrr.predict"


def main(argv: list[str] | None = None) -> None:
    """Entry point."""

    def work(comm: Communicator) -> None:
        from cacore.run.command import predict
        from cakrr.family import Ridge

        predict(Ridge(), PROG, comm, argv)

    run(work, PROG)


if __name__ == "__main__":
    main()
