"""The trainers of the ridge methods, each in what :func:`partition.in_parts.around` puts around it.

Everything is imported when called, so that ``--help`` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cakrr.ridge_model import RidgeFit


def in_parts(*args: Any) -> RidgeFit:
    """Train one model per part; see :meth:`cakrr.methods.task.RidgeTask.in_parts`."""
    from cakrr.methods.calibrated import calibrated
    from cakrr.methods.task import RidgeTask
    from partition.in_parts import around

    return around(RidgeTask.in_parts, intervals=calibrated)(*args)


def exact(*args: Any) -> RidgeFit:
    """Solve one system of all rows; see :func:`cakrr.methods.whole_system.fit`."""
    from cakrr.methods.calibrated import calibrated
    from cakrr.methods.whole_system import fit
    from partition.in_parts import around

    return around(fit, intervals=calibrated)(*args)


def on_points(*args: Any) -> RidgeFit:
    """Least squares on M points; see :func:`cakrr.methods.least_squares.fit`."""
    from cakrr.methods.least_squares import fit

    return fit(*args)
