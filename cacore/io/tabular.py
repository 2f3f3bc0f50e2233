"""Tables whose columns are features and targets, some rows at a time: what CSV, Parquet, Arrow and NPY files share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.errors import InputError
from cacore.io.shares import Dealt, Part, first_error, in_order
from cacore.io.stream import REMEDY, Told, reading
from cacore.io.table import LABELS, NO_TARGET, Table, Targets
from cacore.io.words import as_number, some
from cacore.machine import memory

if TYPE_CHECKING:  # loads compiled code, which NPZ files need not
    from cacore.io.crew import Crew

BLOCK = 1 << 22  # bytes of the numbers of a block


@dataclass(frozen=True)
class Asked:
    """What of a table is features, and what is the target.

    Attributes
    ----------
    target, n_features, binarize, usual_target, limit, wanted
        As for :func:`cacore.io.text.parse`.
    held : bool
        Whether all rows are held, twice while they are put together, and not those of a block alone.
    crew : Crew, optional
        Who parses text, instead of this rank.
    """

    target: str | None = None
    n_features: int | None = None
    binarize: str | None = None
    usual_target: str | None = None
    limit: int = 1 << 62
    wanted: Targets = LABELS
    held: bool = True
    crew: Crew | None = None


class Tabular(ABC):
    """The rows of a table, block by block.

    Parameters
    ----------
    path : Path
    names : tuple of str
        Of the columns, or nothing where the file has none.
    columns : int
    asked : Asked

    Attributes
    ----------
    names : tuple of str
        Of the features, where the columns have names.
    """

    def __init__(self, path: Path, names: tuple[str, ...], columns: int, asked: Asked) -> None:
        self.path, self.asked = path, asked
        target, usual, binarize, wanted = asked.target, asked.usual_target, asked.binarize, asked.wanted
        n_features = asked.n_features
        if not wanted.needed:
            n_features = columns if target == NO_TARGET and n_features is None else n_features
            target, usual = (None if one == NO_TARGET else one for one in (target, usual))
        self._columns = columns
        self.chosen: list[int] = []
        if target is not None or columns != n_features:
            self.chosen = _chosen(target or usual or "-1", path, names, columns)
        self.features = [j for j in range(columns) if j not in self.chosen]
        if not self.features:
            raise InputError(f"{path}: no feature columns beside the target")
        if len(self.chosen) > 1 and (binarize is not None or wanted.text or not wanted.many):
            count, told = len(self.chosen), target or usual
            raise InputError(f"{path}: --target {told}: {count} columns, and one is needed here")
        self.names = tuple(names[j] for j in self.features) if names else ()
        self.words = Words() if self.chosen and (binarize is not None or wanted.text) else None

    @property
    def step(self) -> int:
        """Rows that are read at a time."""
        return max(1, BLOCK // (8 * self._columns))

    @abstractmethod
    def parts(self, told: Told | None) -> Iterator[Part]:
        """Features, shape (m, d), and targets, shape (m, t), of some rows at a time; of words their codes."""

    def line_of(self) -> Callable[[int], int] | None:
        """What finds the line of a row, of a text."""
        return None

    def blocks(self, told: Told | None = None) -> Iterator[Table]:
        """The rows; targets are +1 and -1 where a class was chosen, and codes where words may be."""
        first = 0
        for X, targets in self.parts(told):
            y = None
            if self.chosen:
                y = targets if len(self.chosen) > 1 else targets[:, 0]
            if y is not None and self.words is not None and self.asked.binarize is not None:
                y = self.words.picked(self.asked.binarize)[y.astype(np.int64)]
            yield Table(X, y, str(self.path), first, self.line_of(), names=self.names)
            first += len(X)

    def table(self, comm: Communicator) -> Table:
        """This rank's even block of all rows; collective."""
        shared = self.shared(comm)
        own = shared is not None
        numbers, parts = self._handed_out(comm) if shared is None else shared
        counts = [len(X) for X, _ in parts]
        empty = np.empty((0, len(self.features))), np.empty((0, len(self.chosen)))
        X, targets = (np.concatenate(pieces) for pieces in zip(empty, *parts, strict=True))
        if self.words is not None:
            targets = self.words.agree(comm, own)[targets.astype(np.int64)]
        self.check_class()
        parts.clear()
        X, targets = in_order(X, targets, numbers, counts, comm)
        y = None
        if self.chosen:
            y = targets if len(self.chosen) > 1 else targets[:, 0]
        if y is not None and self.words is not None:
            binarize = self.asked.binarize
            y = (self.words.labels() if binarize is None else self.words.picked(binarize))[y.astype(np.int64)]
        first = block_bounds(comm.offset(len(X))[1], comm.size, comm.rank)[0]
        return Table(X, y, str(self.path), first, self.line_of(), names=self.names)

    def shared(self, comm: Communicator) -> tuple[list[int], list[Part]] | None:
        """Blocks of rows that this rank has read by itself, and their numbers; None if rank 0 must; collective."""
        return None

    def _handed_out(self, comm: Communicator) -> tuple[list[int], list[Part]]:
        """Blocks of rows, and their numbers, of which rank 0 has read all; collective."""
        copies = 2 if comm.size == 1 else 3  # those that are sent, that arrive, and in their order
        if comm.size > 1:
            self.asked = replace(self.asked, held=False)  # rank 0 does not hold them all
        numbers: list[int] = []
        parts: list[Part] = []
        rows = 0
        dealt = Dealt(comm)
        with first_error(comm, dealt.place), reading(self.path), closing(dealt.parts(self.parts(None))) as blocks:
            for number, part in blocks:
                numbers.append(number)
                parts.append(part)
                rows += len(part[0])
                what = f"{self.path}: {rows:,} of its rows"
                memory.require(copies * 8 * self._columns * rows, self.asked.limit, what, REMEDY)
        return numbers, parts

    @property
    def has_class(self) -> bool:
        """Whether a row, of those read so far, is of the class that was chosen; True if none was."""
        if self.words is None or self.asked.binarize is None:
            return True
        return bool((self.words.picked(self.asked.binarize) > 0).any())

    def check_class(self) -> None:
        """Refuse a class that no row has had."""
        if not self.has_class:
            known = some([] if self.words is None else sorted(self.words.known))
            raise InputError(f"{self.path}: --binarize {self.asked.binarize}: no row has this class; there are {known}")

    def require(self, rows: int) -> None:
        """Refuse what memory does not hold: the numbers twice, if they are held, and the target's words."""
        size = (2 * 8 * self._columns * rows if self.asked.held else 0) + (self.words.held if self.words else 0)
        memory.require(size, self.asked.limit, f"{self.path}: to read its first {rows:,} rows", REMEDY)


class Words:
    """The words of the target's column, and a code for each.

    Attributes
    ----------
    held : int
        Bytes that they take.
    """

    def __init__(self) -> None:
        self._codes: dict[str, float] = {}
        self.held = 0

    @property
    def known(self) -> Iterable[str]:
        """The words."""
        return self._codes

    def code(self, word: str) -> float:
        """The code of a word."""
        word = word.strip()
        if word not in self._codes:
            self.held += 200 + 4 * len(word)
            self._codes[word] = float(len(self._codes))
        return self._codes[word]

    def agree(self, comm: Communicator, own: bool) -> NDArray[np.float64]:
        """Take the words of all ranks for one's own; what the codes of this rank's, or else rank 0's, are now."""
        mine = np.frombuffer((json.dumps(list(self._codes)) + "\n").encode(), np.uint8)
        lists = [json.loads(line) for line in comm.allgather(mine).tobytes().decode().splitlines()]
        before = lists[comm.rank if own else 0]
        self._codes = {word: float(code) for code, word in enumerate(dict.fromkeys(chain.from_iterable(lists)))}
        return np.array([self._codes[word] for word in before])

    def labels(self) -> NDArray[Any]:
        """Of each code: numbers if all words are, and otherwise the words."""
        numbers = [as_number(word) for word in self._codes]
        return np.array(list(self._codes) if None in numbers else numbers)

    def picked(self, positive: str) -> NDArray[np.float64]:
        """+1 for the code of this class, which may be written in several ways, and -1 for the others'."""
        number = as_number(positive)
        hit = [word == positive or (number is not None and as_number(word) == number) for word in self._codes]
        return np.where(hit, 1.0, -1.0)


def _chosen(target: str, path: Path, names: tuple[str, ...], columns: int) -> list[int]:
    """The columns of a name or number, or of several with commas between them."""
    if "," not in target or " ".join(target.split()) in names:
        return [_column(target, path, names, columns)]
    chosen = [_column(one, path, names, columns) for one in target.split(",")]
    if len(set(chosen)) < len(chosen):
        raise InputError(f"{path}: --target {target}: a column is named twice")
    return chosen


def _column(target: str, path: Path, names: tuple[str, ...], columns: int) -> int:
    named = [j for j, name in enumerate(names) if name == " ".join(target.split())]
    if len(named) == 1:
        return named[0]
    if named:
        raise InputError(f"{path}: --target {target}: columns {some(named)} have this name; give the number of one")
    try:
        column = int(target)
    except ValueError:
        known = f"the file has no header, give a number below {columns}"
        if names:
            known = "the columns are " + some([f'"{name}"' if "," in name else name for name in names])
        raise InputError(f"{path}: no target column {target!r}; {known}") from None
    if not -columns <= column < columns:
        raise InputError(f"{path}: no target column {column}; there are {columns}, numbered from 0")
    return column % columns
