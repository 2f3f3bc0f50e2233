"""A contract for import-linter: no modules import each other in a circle, imports inside functions counted."""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, output
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components


class NoCircles(Contract):
    """No set of modules in which each imports the next and the last one the first."""

    type_name = "no_circles"

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        """Find the strongly connected components of the graph of imports that have more than one module."""
        modules = sorted(graph.modules)
        place = {name: i for i, name in enumerate(modules)}
        pairs = [(place[a], place[b]) for a in modules for b in graph.find_modules_directly_imported_by(a)]
        rows, columns = zip(*pairs, strict=True)
        adjacent = csr_array(([1] * len(pairs), (rows, columns)), shape=(len(modules),) * 2)
        _, component = connected_components(adjacent, connection="strong")
        members: dict[int, list[str]] = {}
        for name, number in zip(modules, component, strict=True):
            members.setdefault(int(number), []).append(name)
        circles = [names for names in members.values() if len(names) > 1]
        return ContractCheck(kept=not circles, metadata={"circles": circles})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the modules of each circle."""
        for names in check.metadata["circles"]:
            output.print_error(f"a circle of {len(names)} modules: {', '.join(names)}")
