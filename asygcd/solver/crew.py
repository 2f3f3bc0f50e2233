"""Threads that run compiled loops until all are done, and a caller who looks at them now and then."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from asygcd.solver.board import ASKED, IDLE, STOPPED, Board
from cacore.machine.threads import cores

_NAP = 5e-5  # seconds that a thread sleeps which has nothing to do
_LOOK = 0.05  # seconds between two looks


def together(turns: list[Callable[[], int]], board: Board, max_time: float, look: Callable[[], None]) -> None:
    """Run each of `turns` in a thread of its own, again and again until it returns STOPPED.

    Parameters
    ----------
    turns : list of callable
        Compiled loops that let go of the interpreter, and stop soon after ``board.stop`` is set.
    board : Board
    max_time : float
        Seconds until all are asked to stop.
    look : callable
        Called by this thread about 20 times a second.

    Raises
    ------
    BaseException
        What one of the threads or `look` raised, or an interrupt, after all threads have stopped.
    """
    failed: list[BaseException] = []
    places = _places(len(turns))
    threads = [
        threading.Thread(target=_repeat, args=(turn, place, board, failed), name="asygcd")
        for turn, place in zip(turns, places, strict=True)
    ]
    end = time.monotonic() + max_time
    try:
        for thread in threads:
            thread.start()
        while working := [thread for thread in threads if thread.is_alive()]:
            working[0].join(_LOOK)
            if time.monotonic() > end:
                _tell(board)
            look()
    finally:
        _tell(board)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if failed:
        raise failed[0]


def _tell(board: Board) -> None:
    """Stop, unless they have ended by themselves."""
    if not board.stop[0]:
        board.stop[0] = ASKED


def _places(count: int) -> list[int | None]:
    """A core for each thread, where there is one for each and none to spare.

    A thread that shares its core with another of them makes steps from a gradient that is thousands of updates old,
    and the kernel may leave two on one core for a second.
    """
    available = sorted(cores())
    return list(available) if 1 < count == len(available) and hasattr(os, "sched_setaffinity") else [None] * count


def _repeat(turn: Callable[[], int], place: int | None, board: Board, failed: list[BaseException]) -> None:
    try:
        if place is not None:
            os.sched_setaffinity(0, {place})  # of this thread
        while (state := turn()) != STOPPED:
            if state == IDLE:
                time.sleep(_NAP)
    except BaseException as error:
        failed.append(error)
        _tell(board)
