"""Agreement of all ranks on what they were given, before any of them acts on it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import partial
from numbers import Integral, Real
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm.communicator import Communicator
from cacore.errors import InputError

_MANY = 100  # numbers of an array beyond which its digest stands for them
_SHOWN = 100  # characters of a value in a message


class Unquoted(str):
    """A fact in words of this package, which a message shows without quotes."""

    __slots__ = ()


def require_same(facts: Mapping[str, object], comm: Communicator) -> None:
    """Raise an InputError on all ranks if they differ in any of `facts`; it names the first one that differs.

    Parameters
    ----------
    facts : mapping of str to object
        Values by the user's name for them; :func:`canonical` says which values are equal.
    comm : Communicator

    Notes
    -----
    One Allreduce of 48 bytes, of a size that does not depend on the facts: ranks that were given different things,
    different methods included, still make the same call. Only if they differ are the facts themselves exchanged.
    """
    if comm.size == 1:
        return
    text = json.dumps(list(_texts(facts))).encode()
    digest = np.frombuffer(hashlib.blake2b(text, digest_size=24).digest(), np.int64) >> 1  # so that -digest exists
    smallest, negated = np.split(comm.allreduce(np.concatenate([digest, -digest]), "min"), 2)
    if (smallest == -negated).all():
        return
    texts, lengths = comm.allgather_parts(np.frombuffer(text, np.uint8))
    texts_of_ranks = np.split(texts, np.cumsum(lengths)[:-1])
    with comm.agreed():
        raise InputError(_first_difference([dict(json.loads(words.tobytes())) for words in texts_of_ranks]))


def _texts(facts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Names and texts of the facts; an estimator's parameters are facts of their own, as in its `get_params`."""
    for name, value in facts.items():
        if hasattr(value, "get_params") and not isinstance(value, type):
            yield name, _class(value)
            yield from ((f"{name}__{key}", canonical(parameter, key)) for key, parameter in _parameters(value))
        else:
            yield name, canonical(value, name)


def _first_difference(facts_of_ranks: Sequence[Mapping[str, str]]) -> str:
    """Message about the first fact in which the ranks differ, from all ranks' facts."""
    names = dict.fromkeys(name for facts in facts_of_ranks for name in facts)
    each = ((name, [facts.get(name, "not given") for facts in facts_of_ranks]) for name in names)
    return next(unlike(name, values) for name, values in each if len(set(values)) > 1)


def unlike(name: str, values: Iterable[str]) -> str:
    """Message about a fact in which the ranks differ, from its values in the order of ranks; "" is no value."""
    where: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value:
            where.setdefault(value, []).append(rank)
    listed = ", ".join(f"{_short(value)} on {_ranks(ranks)}" for value, ranks in list(where.items())[:3])
    omitted = f", and {len(where) - 3} more" if len(where) > 3 else ""
    return f"{name}: not the same on all ranks ({listed}{omitted}); give every rank the same"


def _short(value: str) -> str:
    """The value, or its ends and a digest if it is long."""
    half = _SHOWN // 2
    return value if len(value) <= _SHOWN else f"{value[:half]}...{value[-half:]} [{_digest(value.encode())}]"


def _ranks(ranks: Sequence[int]) -> str:
    """Ascending ranks in words, such as "rank 3" or "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    words = ", ".join("-".join(map(str, run)) for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {words}"


def shared_name(comm: Communicator) -> str:
    """A random name, the same on all ranks and on no others; "" on a single rank. Collective."""
    if comm.size == 1:
        return ""
    with comm.uncounted():
        return f"{comm.bcast(np.frombuffer(os.urandom(8), np.uint64).astype(np.uint64))[0]:016x}"


def canonical(value: object, name: str = "") -> str:
    """Text that is the same for equal values, on every machine.

    Numbers are equal if they are as floats (1 and 1.0); sequences and small arrays if their elements are; large arrays
    by type, shape and digest; functions by qualified name and compiled code; estimators and dataclasses by class and
    parameters; other objects by class, and by `path` if they have one. Two names are special: of `random_state`
    rank 0's counts, and a `scratch` folder may be a rank's own, so all values of these are equal.
    """
    if name == "random_state":
        return "rank 0's"
    if name.endswith("scratch") and value is not None:
        return "a folder"
    if value is None or isinstance(value, bool | np.bool_):
        return str(value)
    if isinstance(value, Unquoted):
        return str(value)
    if isinstance(value, str | os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, Real):
        return _number(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, Mapping | Set | Sequence) and not isinstance(value, bytes):
        return _collection(value)
    return _object(value)


def _number(value: Real) -> str:
    if isinstance(value, Integral):
        return str(int(value))
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def _collection(value: Mapping[Any, object] | Set[object] | Sequence[object]) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{canonical(key)}: {canonical(item)}" for key, item in value.items())) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(canonical, value))) + "}"
    return "[" + ", ".join(map(canonical, value)) + "]"


def _array(value: NDArray[np.generic]) -> str:
    if value.size <= _MANY:
        return canonical(value.tolist())
    return f"array of {value.dtype}, shape {value.shape} [{_digest(np.ascontiguousarray(value).data)}]"


def _object(value: object) -> str:
    """A function, or an object by its class and parameters."""
    if callable(value) and hasattr(value, "__qualname__"):
        code = getattr(value, "__code__", None)
        code_digest = "" if code is None else f" [{_digest(code.co_code + repr(_constants(code)).encode())}]"
        return f"{value.__module__}.{value.__qualname__}{code_digest}"
    texts = (f"{name}={canonical(parameter, name)}" for name, parameter in _parameters(value))
    return f"{_class(value)}({', '.join(texts)})"


def _class(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _constants(code: CodeType) -> list[object]:
    return [constant for constant in code.co_consts if isinstance(constant, int | float | str | None)]


def _parameters(value: object) -> Iterator[tuple[str, object]]:
    """Parameters of an estimator, or fields of a dataclass, by name."""
    if hasattr(value, "get_params"):
        yield from sorted(value.get_params(deep=False).items())
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif is_dataclass(value):
        yield from ((attribute.name, getattr(value, attribute.name)) for attribute in fields(value))
    elif hasattr(value, "path"):
        yield "path", value.path


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()
