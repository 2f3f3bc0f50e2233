"""The places in scikit-learn that the drop-in replaces, their originals, and worker processes of joblib, which follow.

Only the pickles that joblib sends to its workers bring the drop-in along. Pickles in files, and those of other
programs, are plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from cakernels.dropin import kernel_ridge
from cakernels.dropin.calls import CallCounts
from cakernels.dropin.stand_ins import Dense, Sparse

# Module, object inside it or "", attribute, and what makes the replacement from the original and the calls.
SEAMS: tuple[tuple[str, str, str, Any], ...] = (
    ("sklearn.svm._base", "", "libsvm", Dense),
    ("sklearn.svm._base", "", "libsvm_sparse", Sparse),
    ("sklearn.kernel_ridge", "", "pairwise_kernels", kernel_ridge.kernels),
    ("sklearn.kernel_ridge", "", "_solve_cholesky_kernel", kernel_ridge.solver),
    ("sklearn.kernel_ridge", "KernelRidge", "predict", kernel_ridge.predictor),
)


class Seams:
    """Replacements that are in place.

    Parameters
    ----------
    calls : CallCounts

    Attributes
    ----------
    missing : list of str
        Places that this version of scikit-learn does not have, which therefore stay as they are.
    """

    def __init__(self, calls: CallCounts) -> None:
        self.calls = calls
        self.missing: list[str] = []
        self._undo: list[tuple[Any, str, Any, Any]] = []
        for module, inside, name, make in SEAMS:
            owner: Any = import_module(module)
            owner = getattr(owner, inside) if inside else owner
            if not hasattr(owner, name):
                self.missing.append(f"{module}.{name}")
                continue
            original = getattr(owner, name)
            replacement = make(original, calls)
            setattr(owner, name, replacement)
            self._undo.append((owner, name, original, replacement))

    def restore(self) -> None:
        """Put the originals back, unless something else has been put there meanwhile."""
        for owner, name, original, replacement in self._undo:
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)
        self._undo.clear()


Made = TypeVar("Made")

_REGISTRY = "joblib.externals.loky.backend.reduction"


def call_first(classes: tuple[type, ...], change: Callable[..., None], *arguments: object) -> None:
    """Let a worker call ``change(*arguments)`` when it gets an object of one of these classes."""

    def reduced(estimator: Any) -> tuple[object, ...]:
        make, make_arguments, *state = estimator.__reduce_ex__(4)
        return (revived, (change, arguments, make, make_arguments), *state)

    table = _table()
    for kind in classes if table is not None else ():
        table[kind] = reduced


def _table() -> Any:
    """How joblib's workers get objects, by class; None in a version of joblib that has no such table."""
    try:
        return getattr(import_module(_REGISTRY), "_dispatch_table", None)
    except ImportError:
        return None


def revived(
    change: Callable[..., None],
    arguments: tuple[object, ...],
    make: Callable[..., Made],
    make_arguments: tuple[object, ...],
) -> Made:
    """The estimator, without its attributes, in a process where the change has been made."""
    change(*arguments)
    return make(*make_arguments)
