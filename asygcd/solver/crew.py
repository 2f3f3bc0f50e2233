"""Threads that run compiled loops until all have finished, while the caller polls them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from asygcd.solver.board import ASKED, IDLE, STOPPED, Board
from cacore.machine.clock import working_time
from cacore.machine.threads import cores

_NAP = 5e-5  # seconds that an idle thread sleeps
_LOOK = 0.05  # seconds between two calls of `look`


def together(turns: list[Callable[[], int]], board: Board, max_time: float, look: Callable[[], None]) -> None:
    """Call each of `turns` repeatedly in its own thread, until it returns STOPPED.

    Parameters
    ----------
    turns : list of callable
        Compiled loops that release the GIL and return soon after ``board.stop`` is set.
    board : Board
    max_time : float
        Seconds after which all threads are asked to stop.
    look : callable
        Called by the calling thread about 20 times per second.

    Raises
    ------
    BaseException
        The first exception of a thread or of `look`, or an interrupt; raised after all threads have stopped.
    """
    failed: list[BaseException] = []
    places = _places(len(turns))
    threads = [
        threading.Thread(target=_repeat, args=(turn, place, board, failed), name="asygcd")
        for turn, place in zip(turns, places, strict=True)
    ]
    end = working_time() + max_time
    try:
        for thread in threads:
            thread.start()
        while working := [thread for thread in threads if thread.is_alive()]:
            working[0].join(_LOOK)
            if working_time() > end:
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
    """Ask the threads to stop, unless they have stopped by themselves."""
    if not board.stop[0]:
        board.stop[0] = ASKED


def _places(count: int) -> list[int | None]:
    """The core to pin each thread to, if there are exactly as many cores as threads; otherwise None.

    The operating system may leave two threads on one core for a second, and each would then step from a gradient that
    is thousands of updates old.
    """
    available = sorted(cores())
    return list(available) if 1 < count == len(available) and hasattr(os, "sched_setaffinity") else [None] * count


def _repeat(turn: Callable[[], int], place: int | None, board: Board, failed: list[BaseException]) -> None:
    try:
        if place is not None:
            os.sched_setaffinity(0, {place})  # 0 is the calling thread
        while (state := turn()) != STOPPED:
            if state == IDLE:
                time.sleep(_NAP)
    except BaseException as error:
        failed.append(error)
        _tell(board)
