"""The contents of a kriging model's file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.io import layout
from cacore.io.layout import Array, Layout
from cacore.io.model_file import StoredParts, is_real, require
from cacore.kernels import Kernel
from cakrr.kriging.drift import Drift
from cakrr.kriging.field import PointColumns
from cakrr.kriging.space import Space

SHARED: Layout = {
    "beta": Array("float64", ("p",), "kriging: coefficients of the drift"),
    "gram": Array("float64", ("p", "p"), "F' A^-1 F of the drift's functions F, with A the covariances over the sill"),
    "center": Array("float64", ("d",), "middle of the training rows, by which the drift's functions are scaled"),
    "scale": Array("float64", ("d",), "half their extent"),
}
PART: Layout = {
    "X": Array("float64", ("m", "c"), "coordinates of the points, in which the correlation depends on distance alone"),
    "noise": Array("float64", ("m",), "variance of each value's noise, over the sill"),
    "place": Array("int64", ("m",), "places of the points in the shuffled order"),
    "values": Array("float64", ("m", "v"), "A^-1 (y - F beta) and A^-1 F; v is p + 1"),
}


def shared(drift: Drift, beta: NDArray[np.float64], gram: NDArray[np.float64]) -> dict[str, Rows]:
    """The arrays of :data:`SHARED`."""
    return {"beta": beta, "gram": gram, "center": np.array(drift.center), "scale": np.array(drift.scale)}


def fields(attributes: dict[str, Any], shared: dict[str, Any], parts: StoredParts) -> dict[str, Any]:
    """Check the contents of a file; the fields of its model."""
    sizes: dict[str, int] = {}
    layout.check(SHARED, shared, sizes)
    known = {"v": sizes["p"] + 1}
    for number, arrays in parts.held.items():
        layout.check(PART, arrays, known, f"part {number}: ")
        known = {name: known[name] for name in ("v", "c")}
    for name in ("range", "sill", "nugget", "tol"):
        require(is_real(attributes[name]) and attributes[name] >= 0, f"{name} {attributes[name]!r}")
    ends = [np.concatenate([arrays[name] for arrays in parts.held.values()]) for name in PART] if parts.held else []
    kernel, space = Kernel(**attributes.pop("kernel")), dict(attributes.pop("space"))
    space["anisotropy"] = tuple(space["anisotropy"])
    given = attributes.pop("drift")
    drift = Drift(
        int(given["degree"]), tuple(given["columns"]), tuple(given["ignored"]), len(shared["center"]),
        tuple(shared["center"].tolist()), tuple(shared["scale"].tolist()),
    )  # fmt: skip
    require(drift.functions(np.zeros((1, drift.width))).shape[1] == sizes["p"], "a drift of other functions")
    points = PointColumns(*ends) if ends else _none(drift, sizes["p"], bool(space["geographic"]))
    return {
        **attributes, "kernel": kernel, "space": Space(**space), "drift": drift, "beta": shared["beta"],
        "gram": shared["gram"], "points": points, "sizes": np.array([len(points)]),
    }  # fmt: skip


def _none(drift: Drift, p: int, geographic: bool) -> PointColumns:
    """No points, on a rank that reads no part."""
    d = 3 if geographic else len(drift.coordinates)
    return PointColumns(np.zeros((0, d)), np.zeros(0), np.zeros(0, np.int64), np.zeros((0, p + 1)))
