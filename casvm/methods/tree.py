"""Trees of merges (section 2.2, Fig. 2.1): parts are solved in parallel, then merged two by two until one is left.

Each problem passes up its support vectors (Cascade, DC-Filter) or all of its rows (DC-SVM). Their alpha are the start
of the merged problem. An unpaired part moves up and is merged in a later layer, so any number of parts is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import Rows, bcast_rows, in_memory, is_sparse, nbytes, recv_rows, send_rows
from cacore.machine.clock import working_time
from casvm.model.part_svm import PartSVM, deal, placed
from casvm.model.svm_model import SVMModel
from casvm.options import SVMMethod, SVMOptions
from casvm.svm_fit import STATISTICS, SVMFit, check_memory, named, not_met, predicted_cost, terms
from casvm.tasks import ClassesTask
from partition.in_parts import SolvedPart, solve_all
from partition.redistribute import Parts

# Passes stop once the relative change of the objective is below this times tol. Reasoned: the objective is flat at the
# solution, so it must change far less than the violation does.
_SETTLED = 1e-3


def merged(first_node: Samples, second_node: Samples) -> Samples:
    """Rows of both nodes, each once; if any row is in both, the mean of the two solutions, which is feasible."""
    stacked = Samples.stacked([first_node, second_node])
    unique, first, home = np.unique(stacked["row"], return_index=True, return_inverse=True)
    if len(unique) == len(stacked):
        return stacked
    together = stacked.take(first)
    sums = np.zeros_like(together["coef"])
    np.add.at(sums, home, stacked["coef"])
    together.columns["coef"] = 0.5 * sums
    return together


def solved(node: Samples, part: PartSVM) -> Samples:
    """The node's rows, with the coefficients of its solution."""
    coef = np.zeros_like(node["coef"])
    coef[placed(part.rows, node["row"])] = part.spread(coef.shape[1] + 1).T
    return Samples(node.X, {**node.columns, "coef": coef})


def filtered(node: Samples) -> Samples:
    """The support vectors, and all rows of classes without any, on which this problem has no information."""
    support = node["coef"].any(axis=1)
    supported = np.isin(node["code"], node["code"][support])
    return node.take(np.flatnonzero(support | ~supported))


@dataclass(frozen=True)
class Place:
    """A problem in the tree: its children in the layer before, its owner, and the number of rows below it."""

    children: tuple[int, ...]
    owner: int
    rows: int


def plan(sizes: Sequence[int], owners: Sequence[int]) -> list[list[Place]]:
    """Layers of the tree over parts with these sizes and owners; of two nodes, the smaller moves to the larger."""
    layers = [[Place((i,), int(owner), int(m)) for i, (m, owner) in enumerate(zip(sizes, owners, strict=True))]]
    while len(layers[-1]) > 1:
        below, layer = layers[-1], []
        for i in range(0, len(below), 2):
            pair = below[i : i + 2]
            largest = max(pair, key=lambda place: place.rows)
            layer.append(Place(tuple(range(i, i + len(pair))), largest.owner, sum(place.rows for place in pair)))
        layers.append(layer)
    return layers


def neighbours(sizes: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Owners of parts: consecutive parts per rank, with about equal work, so that most merges send nothing."""
    cost = np.cumsum(predicted_cost(sizes.astype(np.float64)))
    middle = cost - 0.5 * np.diff(cost, prepend=0.0)
    owners = np.minimum((middle / cost[-1] * ranks).astype(np.int64), ranks - 1)
    # Every rank needs a part: skip none, and leave enough parts for the following ranks.
    for i in range(len(owners)):
        before = -1 if i == 0 else int(owners[i - 1])
        owners[i] = min(max(owners[i], before, ranks - (len(owners) - i)), before + 1)
    return np.asarray(owners)


def fit(method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> SVMFit[SVMModel]:
    """Train a tree of SVMs that ends in one model; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        As raised by :meth:`casvm.tasks.SVMTask.prepared`; insufficient memory for a merge.

    Notes
    -----
    Each problem costs what :func:`casvm.solver.smo.solve` does with a warm start. In each layer, at most half of the
    rows (DC-SVM) or of the support vectors are sent, point to point. The last rank to work holds all of them.
    """
    task = ClassesTask.prepared(method, train, options, comm)
    with comm.phase("partition"):
        parts = task.divided(0, comm, neighbours)
        sizes, owners = _everywhere(parts, comm)
        layers = plan(sizes.tolist(), owners.tolist())
        with comm.agreed():
            _check_memory(method, parts, layers, options, comm)
    tree = _Tree(task, layers)
    with comm.phase("train"):
        root, passes = tree.run(parts, comm)
    comm.wait()
    with comm.phase("predict"):
        piece = deal(root, len(task.classes), layers[-1][0].owner, comm)
    model = task.model_in_pieces(piece, len(piece.rows), comm)
    return tree.result(model, sizes, passes, comm)


def _everywhere(parts: Parts, comm: Communicator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sizes and owners of all parts."""
    rows = np.column_stack([parts.parts, np.diff(parts.bounds), np.full(len(parts.parts), comm.rank)]).astype(np.int64)
    table = comm.allgather(rows)
    table = table[np.argsort(table[:, 0])]
    return table[:, 1], table[:, 2]


def _check_memory(
    method: SVMMethod, parts: Parts, layers: list[list[Place]], options: SVMOptions, comm: Communicator
) -> None:
    """Check memory for this rank's largest problem; if only support vectors move, their number is not known yet."""
    held = nbytes(parts.X) * (2 if is_sparse(parts.X) else 1)  # slices of CSR are copies
    if method.merge == "all" and parts.X.shape[0]:
        largest = max(place.rows for layer in layers for place in layer if place.owner == comm.rank)
        held += 2 * largest * nbytes(parts.X) // parts.X.shape[0]  # a merged node and its two children
    check_memory(held, options)


@dataclass
class _Tree:
    """The layers and the measurements of one training.

    `lines` has one row per problem: pass, layer, number, rows, and statistics. `seconds` has the time of each layer,
    pass by pass.
    """

    task: ClassesTask
    layers: list[list[Place]]
    lines: list[NDArray[np.float64]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def run(self, parts: Parts, comm: Communicator) -> tuple[PartSVM | None, int]:
        """Run passes while they change the objective; return the last model, on its owner, and the number of passes."""
        leaves = {part: parts.take(rows) for part, rows in parts}
        for leaf in leaves.values():
            leaf.columns.pop("order", None)
            leaf.columns["coef"] = np.zeros((len(leaf), len(self.task.classes) - 1))
        before, passes, root, support = -np.inf, 0, self.layers[-1][0].owner, None
        while True:
            solved, node = self._pass(leaves, support, passes, comm)
            passes += 1
            reached = np.zeros(1) if solved is None else solved.numbers[STATISTICS.index("objective")].reshape(1)
            if passes >= self.task.options.passes or len(self.layers) == 1:
                break
            comm.barrier()
            objective = float(comm.bcast(reached, root)[0])
            if objective - before <= _SETTLED * self.task.options.limits.tol * abs(objective):
                break
            before = objective
            support = _shared(node, root, comm)
            check_memory(sum(nbytes(leaf.X) for leaf in leaves.values()) + 4 * nbytes(support.X), self.task.options)
        return None if solved is None else solved.part, passes

    def _pass(
        self, leaves: dict[int, Samples], support: Samples | None, turn: int, comm: Communicator
    ) -> tuple[SolvedPart[PartSVM] | None, Samples | None]:
        """Run one pass through all layers; return the last problem's solution and rows, on its owner."""
        solved, nodes = self._layer(leaves, turn, 0, support)
        for depth, (below, layer) in enumerate(pairwise(self.layers), 1):
            moved = self._moved(nodes, below, layer, comm)
            # A node without a partner has been solved already.
            alone = {i: layer[i].children[0] for i in moved if len(layer[i].children) == 1}
            todo = {i: node for i, node in moved.items() if i not in alone}
            before, (solved, nodes) = solved, self._layer(todo, turn, depth)
            solved |= {i: before[child] for i, child in alone.items()}
            nodes |= {i: moved[i] for i in alone}
        return solved.get(0), nodes.get(0)

    def _layer(
        self, nodes: dict[int, Samples], turn: int, depth: int, support: Samples | None = None
    ) -> tuple[dict[int, SolvedPart[PartSVM]], dict[int, Samples]]:
        """Solve this rank's problems in a layer; return the solutions and the rows to pass up.

        The last pass's `support` vectors are added to one node at a time, to save memory.
        """

        def load(number: int) -> tuple[str, Samples]:
            return f"pass-{turn:03d}-layer-{depth:02d}-node-{number:06d}", _joined(nodes[number], support)

        begun = working_time()
        sizes = {number: self.layers[depth][number].rows for number in nodes}
        label = f"layer {depth + 1} of {len(self.layers)}"
        solutions = solve_all(self.task, sizes, load, label) if nodes else {}
        self.seconds.append(working_time() - begun)
        up = {}
        for number, solution in solutions.items():
            node = _joined(nodes[number], support)
            self.lines.append(np.concatenate([[turn, depth, number, len(node)], solution.numbers]))
            done = solved(node, solution.part)
            up[number] = filtered(done) if self.task.method.merge == "support" else done
        return solutions, up

    def _moved(
        self, nodes: dict[int, Samples], below: list[Place], layer: list[Place], comm: Communicator
    ) -> dict[int, Samples]:
        """Send, receive and merge nodes; returns this rank's nodes of the next layer. All ranks use the same order."""
        out = {}
        for number, place in enumerate(layer):
            for child in place.children:
                if below[child].owner == comm.rank != place.owner:
                    _send(nodes[child], place.owner, comm)
            if place.owner == comm.rank:
                like = in_memory(next(iter(nodes.values())).X)
                children = [
                    nodes[child] if below[child].owner == comm.rank else _receive(below[child].owner, comm, like)
                    for child in place.children
                ]
                check_memory(2 * sum(nbytes(node.X) for node in children), self.task.options)
                out[number] = merged(*children) if len(children) == 2 else children[0]
        return out

    def result(self, model: SVMModel, sizes: NDArray[np.int64], passes: int, comm: Communicator) -> SVMFit[SVMModel]:
        """Gather the statistics of all ranks, and build the result of training."""
        depth = len(self.layers)
        width = 4 + len(STATISTICS) + 1
        with comm.uncounted():
            lines = comm.allgather(np.array(self.lines).reshape(-1, width))
            all_seconds = comm.allgather(np.array(self.seconds).reshape(1, passes, depth))
        lines = lines[np.lexsort(lines[:, 2::-1].T)]
        layers, summed = [], []
        for turn, layer in np.ndindex(passes, depth):
            here = lines[(lines[:, 0] == turn) & (lines[:, 1] == layer)]
            owners = {self.layers[layer][int(number)].owner for number in here[:, 2]}
            seconds, numbers = float(all_seconds[:, turn, layer].max()), here[:, 4:]
            worst = numbers[:, 3].max(initial=0.0)
            summed.append([*numbers[:, :3].sum(axis=0), worst, seconds, *numbers[:, 5:7].sum(axis=0)])
            facts = {name: values.tolist() for name, values in named(numbers).items()}
            layers.append({
                "pass": turn + 1, "layer": layer + 1, "ranks": len(owners), "layer_seconds": seconds,
                "rows": here[:, 3].astype(np.int64).tolist(), **facts,
            })  # fmt: skip
        total = sum(layer["layer_seconds"] for layer in layers)
        parallel = sum(layer["layer_seconds"] * layer["ranks"] for layer in layers) / total if total > 0 else 1.0
        notes = not_met(lines[:, 4:], self.task.options.limits.tol, "problems")
        facts_of_tree = {"passes": passes, "average_parallelism": parallel, "layers": layers}
        solver = named(np.array(summed))
        measured = terms(sizes, self.task.nonzeros, self.task.n_iter, solver)
        return SVMFit(
            model,
            sizes,
            solver,
            all_seconds.sum(axis=(1, 2)),
            self.task.options.limits.tol,
            measured,
            notes,
            facts_of_tree,
        )


def _joined(leaf: Samples, support: Samples | None) -> Samples:
    """A leaf's rows together with the last pass's support vectors and their alpha, if there was a pass."""
    if support is None:
        return leaf
    others = np.flatnonzero(~np.isin(leaf["row"], support["row"]))
    return merged(support, leaf.take(others)) if len(others) else support


def _tables(node: Samples) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Columns of the rows, in one table of integers and one of floats."""
    return np.column_stack([node["code"], node["row"]]), np.column_stack([node["C"], node["coef"]])


def _from_tables(X: Rows, numbers: NDArray[np.int64], values: NDArray[np.float64]) -> Samples:
    return Samples(X, {"code": numbers[:, 0], "C": values[:, 0], "row": numbers[:, 1], "coef": values[:, 1:]})


def _send(node: Samples, dest: int, comm: Communicator) -> None:
    for table in _tables(node):
        comm.send(table, dest)
    send_rows(in_memory(node.X), dest, comm)


def _receive(source: int, comm: Communicator, like: Rows) -> Samples:
    numbers, values = comm.recv(source), comm.recv(source)
    return _from_tables(recv_rows(source, comm, like), numbers, values)


def _shared(node: Samples | None, root: int, comm: Communicator) -> Samples:
    """The last problem's support vectors, broadcast from rank `root`; collective."""
    X = bcast_rows(None if node is None else in_memory(node.X), comm, root)
    numbers, values = (None, None) if node is None else _tables(node)
    return _from_tables(X, comm.bcast(numbers, root), comm.bcast(values, root))
