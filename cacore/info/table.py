"""The table that ``python -m cacore.info`` prints, from its report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

GIB = 1 << 30
_MOST = 6  # machines or ranks listed by name


def rows(made: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Rows of the table: name and text."""
    found = made["versions"]
    yield "packages", ", ".join(f"{name} {found[name]}" for name in found if name not in ("cakernels", "mpi"))
    none = "none can be loaded, so there is one rank only; for more: pip install 'cakernels[mpi]'"
    yield "MPI", none if found["mpi"] == "none" else found["mpi"]
    yield "processor", made["cpu"]
    yield from _places(made["ranks"])
    yield "BLAS", ", ".join(f"{one['name']} {one['version']} (threads: {one['threads']})" for one in made["blas"])
    library = made["scalapack"]
    yield "ScaLAPACK", library.get("path") or f"none; {library['missing']}"
    sizes = {name: size / GIB for name, size in made["memory"].items()}
    text = "{node:.1f} GiB per node, {free:.1f} of them free; {limit_per_rank:.1f} allowed per rank"
    yield "memory", text.format(**sizes)
    yield "numba's cache", _first_of({one["cache"]: None for one in made["ranks"] if one["cache"]})
    yield "messages", _messages(made["messages"], len(made["ranks"]))
    for title, key, unit in (("matrix product", "product_gflop_s", "GFLOP/s"), ("memory copy", "copy_gb_s", "GB/s")):
        yield title, _rates([one[key] for one in made["ranks"]], unit)
    yield "this took", f"{made['seconds']:.1f} s"


def _places(ranks: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Rows about where the ranks run, and about their cores and threads."""
    nodes: dict[int, list[dict[str, Any]]] = {}
    for one in ranks:
        nodes.setdefault(one["node"], []).append(one)
    hosts = {f"{len(there)} on {there[0]['host']}": None for there in nodes.values()}
    where = "" if len(nodes) == 1 else f" on {len(nodes)} nodes"
    yield "ranks", f"{len(ranks)}{where}: {_first_of(hosts)}"
    threads = sorted({one["threads"] for one in ranks})
    yield "threads", f"{' to '.join(str(t) for t in (threads[0], threads[-1])[: len(threads)])} per rank"
    bound = {f"rank {one['rank']}: {intervals(one['cores'])}": None for one in ranks}
    free = all(len(one["cores"]) == one["node_cores"] for one in ranks)
    cores = " or ".join(str(count) for count in sorted({one["node_cores"] for one in ranks}))
    yield "cores", f"{cores} per node; " + ("no rank is bound to a part of them" if free else _first_of(bound))


def _first_of(texts: dict[str, None]) -> str:
    more = len(texts) - _MOST
    return ", ".join(list(texts)[:_MOST]) + (f" and {more} more" if more > 0 else "")


def intervals(numbers: list[int]) -> str:
    """Ascending numbers as text, with runs joined, such as "0-3 8 10-11"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return " ".join("-".join(map(str, run)) for run in runs)


def _messages(found: dict[str, float], count: int) -> str:
    if not found:
        return "one rank sends none"
    between = f"rank 0 to rank {count - 1}: {found['latency_us']:.3g} us, {found['bandwidth_gb_s']:.3g} GB/s"
    return f"{between}; a sum over all ranks: {found['allreduce_us']:.3g} us"


def _rates(values: list[float], unit: str) -> str:
    if len(values) == 1:
        return f"{values[0]:.3g} {unit}"
    least = min(values)
    return (
        f"{sum(values) / len(values):.3g} {unit} per rank, all at once; "
        f"the slowest, rank {values.index(least)}: {least:.3g}"
    )
