"""Why parts work: put in the order of its parts, a kernel matrix is nearly block-diagonal (Fig. 2.9, Table 2.19).

python examples/kernel_approximation.py [--data FOLDER] [--parts P] [-o OUT.png]

Rows of covtype are drawn at random, and divided at random, by K-means and by K-balance. A method in parts sees
only the diagonal blocks of the kernel matrix. The table has what that loses of its Frobenius norm, by equation
2.14: |F^ - F| / F^ for F^ of the whole matrix and F of the blocks. The figure has the matrix in the order drawn,
and in the order of the K-means parts.

What matches the thesis, over twelve draws of 5,000 rows, features scaled to [0, 1] by the whole file:

* The norm of the whole matrix: 151.8 to 157.8 at gamma = 20 and 81.7 to 83.2 at 70, where Table 2.19 has 154.2 and
  82.6. With --seed 2 it is 154.0 and 82.2.
* The error of random parts, if there are 4 of them: 35 to 37 % at gamma = 20 and 9.8 to 11.1 % at 70 (three draws,
  three divisions of each), where the table has 36.0 and 10.6. In 8 parts it is 44 to 45 and 12 to 13 %. The thesis
  does not say how many it has; its norms do: of the squares off the diagonal random parts keep 1/P, and 0.25 are kept.
* The error of K-means parts, 0.0 % in the table: 0.00 % from gamma = 3 on in seven of nine divisions into 4, and at
  most 0.6 % at 20 in the others. In 8 parts it is 0.0 to 0.3 % at 20.
* The 458,222 nonzeros: 437,524 to 476,542 values are above 0.001 at gamma = 32, the thesis' gamma for covtype. Neither
  number stands beside Fig. 2.9: this pair is one that fits.

What does not: the first 5,000 rows of the file (norms 278 and 132.5), features scaled to [0, 1] by the rows drawn
alone (138.7 and 79.6) or to [-1, 1] (80.8 and 72.2). And the norms of Table 2.19's clustered parts are larger than
those of the whole, 154.28 above 154.24: blocks of the same matrix cannot have that, and here they never do.

What the thesis does not show: for small gamma random parts come to an error of 1 - 1/sqrt(P), and K-means parts have
one as well. Parts of equal sizes cut through clusters: K-balance's error is 16 to 25 % at gamma = 20 in 8 parts.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_writable, replacing
from cacore.io import load
from cacore.kernels import Kernel, Points
from cacore.machine import threads
from cacore.run.launch import Parser, run
from partition import KBalance, KMeans, Partitioner, RandomPartition

FILE = "covtype.data.xz"
DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
GAMMAS = (0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)  # Table 2.19 has those from 20 on
DRAWN = Kernel("gaussian", 32.0)  # the thesis' gamma for covtype
NONZERO = 1e-3  # what counts as a nonzero of it
MOST_TILES = 500  # along each side of the figure's matrices
STRIP = 512  # rows of the kernel matrix that are held at once
FORMATS = (".png", ".pdf", ".svg")


def read(folder: Path, count: int, seed: int) -> tuple[NDArray[np.float64], int]:
    """Some rows in random order, features scaled to [0, 1] over the whole file; and how many rows that has."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{path}: no such file; name its folder with --data or in CAKERNELS_DATA")
    X = load(path, Communicator())["train"].X
    if count > len(X):
        raise InputError(f"--rows {count:,}: {path} has {len(X):,}")
    low, high = X.min(axis=0), X.max(axis=0)
    drawn = X[np.random.default_rng(seed).permutation(len(X))[:count]]
    return (drawn - low) / np.where(high > low, high - low, 1.0), len(X)


def norm(kernel: Kernel, blocks: list[Points]) -> float:
    """Frobenius norm of the block-diagonal matrix that has a block for each entry of `blocks`."""
    total = 0.0
    for rows in blocks:
        for lo in range(0, len(rows), STRIP):
            few = rows[lo : lo + STRIP]
            K = kernel.block(few, rows[lo:])  # what lies left of the diagonal lies above it too
            square = K[:, : len(few)]
            total += 2.0 * np.vdot(K, K) - np.vdot(square, square)
    return float(np.sqrt(total))


def tiles(rows: Points) -> tuple[NDArray[np.float64], int]:
    """Share of nonzeros in each tile of the kernel matrix, and nonzeros in all."""
    edges = np.linspace(0, len(rows), min(len(rows), MOST_TILES), endpoint=False).astype(np.int64)
    counts = np.zeros((len(edges), len(edges)))
    for lo in range(0, len(rows), STRIP):
        K = DRAWN.block(rows[lo : lo + STRIP], rows)
        across = np.add.reduceat(K > NONZERO, edges, axis=1, dtype=np.int64)
        np.add.at(counts, np.searchsorted(edges, np.arange(lo, lo + len(K)), "right") - 1, across)
    sides = np.diff(edges, append=len(rows))
    return counts / np.outer(sides, sides), int(counts.sum())


def table(rows: Points, divisions: dict[str, NDArray[np.int32]]) -> None:
    """F-norms and errors by gamma, for each division of the rows, as a markdown table."""
    blocks = {name: [rows[np.flatnonzero(labels == part)] for part in np.unique(labels)]
              for name, labels in divisions.items()}  # fmt: skip
    print(f"| gamma | whole: F-norm | {' | '.join(f'{name}: F-norm, error' for name in blocks)} |")
    print("|---" * (2 + len(blocks)) + "|")
    for gamma in GAMMAS:
        kernel = Kernel("gaussian", gamma)
        whole = norm(kernel, [rows])
        parts = [norm(kernel, some) for some in blocks.values()]
        cells = [f"{part:.2f}, {abs(whole - part) / whole:.2%}" for part in parts]
        print(f"| {gamma:g} | {whole:.2f} | {' | '.join(cells)} |", flush=True)


def draw(panels: dict[str, NDArray[np.float64]], borders: NDArray[np.float64], path: Path) -> str:
    """Draw the two matrices side by side, with the parts' borders on the second; a line that says what was done."""
    try:
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
    except ImportError:
        return "no figure: it needs matplotlib (pip install matplotlib)"
    figure = Figure((11, 5.4), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    scale = PowerNorm(0.5, 0.0, 1.0)  # few tiles are full: the square root shows the others too
    for axis, (title, shares) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(shares, cmap="Blues", norm=scale, interpolation="nearest", extent=(0, 1, 1, 0))
        axis.set(title=title, xticks=[], yticks=[])
    axes[1].hlines(borders, 0, 1, colors="tab:orange", linewidth=0.4)
    axes[1].vlines(borders, 0, 1, colors="tab:orange", linewidth=0.4)
    figure.colorbar(image, ax=list(axes), label=f"share of kernel values above {NONZERO:g}", shrink=0.85)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
    return f"figure: {path}"


def options() -> argparse.Namespace:
    """What was asked for, checked before anything is read."""
    parser = Parser(prog="kernel_approximation", description=__doc__.splitlines()[0])
    folder = Path(os.environ.get("CAKERNELS_DATA", DATA))
    parser.add_argument(
        "--data", metavar="FOLDER", type=Path, default=folder, help=f"where {FILE} is; or name it in CAKERNELS_DATA"
    )
    parser.add_argument("--rows", metavar="N", type=int, default=5000, help="rows to draw")
    parser.add_argument("--parts", metavar="P", type=int, default=8, help="parts; the thesis' figures are those of 4")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of everything random")
    parser.add_argument("-o", "--output", metavar="OUT.png", type=Path, help="draw the figure; needs matplotlib")
    args = parser.parse_args()
    if args.rows < 1:
        raise InputError(f"--rows {args.rows}: at least 1 is needed")
    if not 1 <= args.parts <= args.rows:
        raise InputError(f"--parts {args.parts}: it must be from 1 to the {args.rows:,} rows")
    if not 0 <= args.seed < 1 << 32:
        raise InputError(f"--seed {args.seed}: it must be from 0 to {(1 << 32) - 1}")
    if args.output is not None:
        if args.output.suffix.lower() not in FORMATS:
            raise InputError(f"--output {args.output}: the name must end with {' or '.join(FORMATS)}")
        check_writable(args.output)
    return args


def main(_: Communicator) -> None:
    """Draw rows, divide them, print the table and draw the figure."""
    args = options()
    threads.set_threads(1)  # reading is most of it, and the products are too narrow to share out
    X, available = read(args.data, args.rows, args.seed)
    partitioners: dict[str, type[Partitioner]] = {"random": RandomPartition, "K-means": KMeans, "K-balance": KBalance}
    divisions = {name: kind(args.parts, random_state=args.seed).fit(X).labels_ for name, kind in partitioners.items()}
    rows = DRAWN.points(X)
    sizes = np.bincount(divisions["K-means"])
    before, nonzeros = tiles(rows)
    print(f"{len(X):,} of {available:,} rows of covtype, {X.shape[1]} features scaled to [0, 1]; {args.parts} parts,")
    print(f"of K-means with {sizes.min():,} to {sizes.max():,} rows")
    print(f"{nonzeros:,} kernel values above {NONZERO:g} at gamma = {DRAWN.gamma:g}\n")
    table(rows, divisions)
    if args.output is None:
        print("\nFor the figure: -o OUT.png, with matplotlib installed")
        return
    after, _ = tiles(rows[np.argsort(divisions["K-means"], kind="stable")])
    panels = {"rows in the order drawn": before, f"rows in the order of {args.parts} K-means parts": after}
    print("\n" + draw(panels, np.cumsum(sizes)[:-1] / len(X), args.output))


if __name__ == "__main__":
    run(main, "kernel_approximation", Communicator())
