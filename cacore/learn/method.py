"""A method of a family: its record, which is also the call that trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cacore.comm import collective


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its name, its options, and what trains it.

    Its command, the estimators and a notebook all train through :meth:`__call__`.

    Attributes
    ----------
    name : str
        Of its command, its model and its report.
    summary : str
        One line for the command's help.
    trainer : callable
        ``trainer(method, train, options, comm, test)``: the algorithm, on all ranks' rows.
    package : str
        The family's.
    options : type
        The family's dataclass of options.
    """

    package: ClassVar[str]
    options: ClassVar[type]

    name: str
    summary: str
    trainer: Callable[..., Any]

    def __call__(self, train: Any, options: Any, comm: Any = None, test: Any = None) -> Any:
        """Train on all ranks' rows; a collective call.

        Parameters
        ----------
        train : Dataset
            This rank's rows, which are taken from it: it is empty afterwards, so that they are not held twice.
        options : Options
        comm : mpi4py communicator, Communicator or None
        test : Dataset, optional
            Test rows, for a method that can look at them.

        Returns
        -------
        Fit

        Raises
        ------
        InputError, RankError
            On all ranks.
        """
        with collective(comm) as ranks:
            fitted = self.trainer(self, train, options, ranks, test)
        if hasattr(fitted.model, "comm"):  # a model that lies on the ranks that trained it
            fitted.model.comm = comm
        return fitted

    def has(self, name: str) -> bool:
        """Whether its command has the option `name`."""
        return True

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Of its command's options, where they are not those of the declarations."""
        return {}

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Likewise."""
        return {}

    @property
    def prog(self) -> str:
        """Its command."""
        return f"{self.package}.{self.name}"
