"""The drop-in: scikit-learn's own classes, trained by this package's solvers.

================  =================================================================================================
`seams`           the places in scikit-learn that are replaced, and joblib's worker processes
`stand_ins`       the stand-ins for LIBSVM's functions; `libsvm_problem`: its problems and models by name
`kernel_ridge`    the stand-ins for the kernel values and the solver of KernelRidge
`train`           the exact solver and the kernel expansions, once the first problem is taken over
`system`          kernel values and Cholesky factors, once the first call of KernelRidge is taken over
`calls`           counts of the calls that were taken over or handed back, and why
`costs`           estimates of the seconds of a call there and here
================  =================================================================================================

Nothing else of scikit-learn changes: estimators keep their class, parameters, attributes, messages and pickles.
"""

from __future__ import annotations

import warnings
from importlib import import_module

from cakernels.dropin import seams
from cakernels.dropin.calls import CallCounts
from cakernels.dropin.seams import Seams

__all__ = ["CLASSES", "CallCounts", "CallLedger", "counts", "patch_sklearn", "unpatch_sklearn"]

CLASSES = {"sklearn.svm": ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM"), "sklearn.kernel_ridge": ("KernelRidge",)}

CallLedger = CallCounts  # the name that the class had first

_in_place: Seams | None = None  # scikit-learn is patched for the whole process, or it is not


def patch_sklearn(verbose: bool = False, everything: bool = False, preload: bool = False) -> None:
    """Let this package train scikit-learn's SVC, NuSVC, SVR, NuSVR, OneClassSVM and KernelRidge.

    The classes stay scikit-learn's own. It does not matter if they were imported, or objects made of them, before.
    Processes that joblib starts later are patched as well.

    Parameters
    ----------
    verbose : bool
        Print a line to stderr the first time that a kind of call is taken over, or left to scikit-learn for a reason.
    everything : bool
        Take over small problems, too, where scikit-learn's own code is as fast or faster; for tests.
    preload : bool
        Begin to load the solvers at once, in a thread, instead of when the calls so far are worth the 0.8 s that it
        takes.

    Examples
    --------
    >>> from cakernels import patch_sklearn, unpatch_sklearn
    >>> patch_sklearn()
    >>> from sklearn.svm import SVC  # from now on trained by this package
    >>> SVC.__module__.partition(".")[0]
    'sklearn'
    >>> unpatch_sklearn()
    """
    global _in_place
    unpatch_sklearn()
    _in_place = Seams(CallCounts(verbose, everything))
    seams.call_first(_classes(), patch_worker, everything)
    if preload:
        _in_place.calls.preload(asked=True)
    if _in_place.missing:
        import sklearn

        names = ", ".join(_in_place.missing)
        warnings.warn(f"scikit-learn {sklearn.__version__} has no {names}: its own code is used there", stacklevel=2)


def patch_worker(everything: bool) -> None:
    """Patch a worker process of joblib, unless it is patched already: its counts and its sum of work go on."""
    if _in_place is None or _in_place.calls.everything != everything:
        patch_sklearn(False, everything)


def unpatch_sklearn() -> None:
    """Undo :func:`patch_sklearn`; models that were fitted meanwhile stay as they are.

    Examples
    --------
    >>> from cakernels import patch_sklearn, unpatch_sklearn
    >>> import sklearn.svm
    >>> patch_sklearn()
    >>> unpatch_sklearn()
    >>> sklearn.svm.SVC.__module__
    'sklearn.svm._classes'
    """
    global _in_place
    if _in_place is not None:
        _in_place.restore()
        seams.call_first(_classes(), unpatch_sklearn)  # they may be older than this call, and patched
    _in_place = None


def counts() -> CallCounts | None:
    """Counts of the calls taken over and handed back since :func:`patch_sklearn`; None if it was not called."""
    return None if _in_place is None else _in_place.calls


def _classes() -> tuple[type, ...]:
    return tuple(getattr(import_module(module), name) for module, names in CLASSES.items() for name in names)
