"""The places in scikit-learn that the drop-in replaces, and their originals."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cakernels.dropin import ridge
from cakernels.dropin.ledger import CallLedger
from cakernels.dropin.libsvm import Dense, Sparse

# Module, object inside it or "", attribute, and what makes the replacement from the original and the ledger.
SEAMS: tuple[tuple[str, str, str, Any], ...] = (
    ("sklearn.svm._base", "", "libsvm", Dense),
    ("sklearn.svm._base", "", "libsvm_sparse", Sparse),
    ("sklearn.kernel_ridge", "", "pairwise_kernels", ridge.kernels),
    ("sklearn.kernel_ridge", "", "_solve_cholesky_kernel", ridge.solver),
    ("sklearn.kernel_ridge", "KernelRidge", "predict", ridge.predictor),
)


class Seams:
    """Replacements that are in place.

    Parameters
    ----------
    ledger : CallLedger

    Attributes
    ----------
    missing : list of str
        Places that this version of scikit-learn does not have, which therefore stay as they are.
    """

    def __init__(self, ledger: CallLedger) -> None:
        self.ledger = ledger
        self.missing: list[str] = []
        self._undo: list[tuple[Any, str, Any, Any]] = []
        for module, inside, name, make in SEAMS:
            owner: Any = import_module(module)
            owner = getattr(owner, inside) if inside else owner
            if not hasattr(owner, name):
                self.missing.append(f"{module}.{name}")
                continue
            original = getattr(owner, name)
            replacement = make(original, ledger)
            setattr(owner, name, replacement)
            self._undo.append((owner, name, original, replacement))

    def restore(self) -> None:
        """Put the originals back, unless something else has been put there meanwhile."""
        for owner, name, original, replacement in self._undo:
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)
        self._undo.clear()
