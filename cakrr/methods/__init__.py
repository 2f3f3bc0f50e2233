"""The trainers of the ridge methods; each is imported when called, so that ``--help`` is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cakrr.fit import RidgeFit


def in_parts(*args: Any) -> RidgeFit:
    """Train one model per part; see :func:`cakrr.methods.parts.fit`."""
    from cakrr.methods.calibrated import calibrated
    from cakrr.methods.parts import fit

    return calibrated(fit, *args)


def exact(*args: Any) -> RidgeFit:
    """Solve one system of all rows; see :func:`cakrr.methods.dkrr.fit`."""
    from cakrr.methods.calibrated import calibrated
    from cakrr.methods.dkrr import fit

    return calibrated(fit, *args)


def on_points(*args: Any) -> RidgeFit:
    """Least squares on M points; see :func:`cakrr.methods.subset.fit`."""
    from cakrr.methods.subset import fit

    return fit(*args)
