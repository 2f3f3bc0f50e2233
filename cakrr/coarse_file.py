"""The coarse model of two levels, and of least squares on M points, in a model file."""

from __future__ import annotations

from typing import Any

from cacore.data.rows import Rows
from cacore.io.model_file import is_real, require
from cacore.kernels import Kernel
from cakrr.solver.coarse import CoarseModel


def stored_coarse(coarse: CoarseModel, like: Kernel) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Attributes and arrays of a coarse model for the file of a model whose kernel is `like`."""
    attributes: dict[str, Any] = {"sigma": coarse.sigma, "lambda": coarse.lam}
    if coarse.refined:
        attributes["refined"] = True
    if coarse.kernel != like:
        attributes["kernel"] = coarse.kernel.stored()
    arrays: dict[str, Rows] = {"coarse_centers": coarse.centers, "coarse_beta": coarse.beta}
    if coarse.factor is not None and coarse.unit is not None:
        attributes |= {"weight": coarse.weight, "rows": coarse.rows}
        arrays |= {"coarse_factor": coarse.factor, "coarse_unit": coarse.unit}
    return attributes, arrays


def read_coarse(attributes: dict[str, Any] | None, arrays: dict[str, Any], like: Kernel) -> CoarseModel | None:
    """The coarse model that :func:`stored_coarse` has stored; None without attributes."""
    if attributes is None:
        return None
    kernel = Kernel(**attributes["kernel"]) if "kernel" in attributes else like
    return CoarseModel(
        arrays["coarse_centers"], arrays["coarse_beta"], attributes["sigma"], attributes["lambda"], kernel,
        bool(attributes.get("refined", False)), arrays.get("coarse_factor"), arrays.get("coarse_unit"),
        attributes.get("weight", 0.0), attributes.get("rows", 0),
    )  # fmt: skip


def check_coarse(coarse: CoarseModel) -> None:
    """Refuse a coarse model whose numbers cannot be those of a trained one."""
    coarse.kernel.with_sigma(coarse.sigma)
    kept = coarse.factor is not None
    require(kept == (coarse.unit is not None), "a triangle of the centres without its unit, or the reverse")
    require(not kept or (is_real(coarse.weight) and coarse.weight > 0), "weight of the triangle's rows")
