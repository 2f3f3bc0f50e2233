"""CA-SVM (Algorithm 5): random parts, and nothing is sent before prediction.

Each rank deals its own rows to its parts at random (line 1), trains one SVM per part (line 2), and takes the mean of
the part's rows as its centre (line 3). Since the centres of random parts lie close to each other, a new row is
predicted by the mean of all decisions. ``--route nearest`` is the listing's own rule, the model of the nearest centre
(lines 4 to 9), which is usually less accurate.

Training takes about 2 s m nnz flops per part of m rows, with s support vectors and nnz nonzeros per row, and memory for
this rank's rows and the kernel cache. Partitioning and training send nothing. In prediction a row is sent to every
rank, or with ``--route nearest`` to one rank and back.

From here to the update of one pair of rows: :func:`partition.in_parts.in_parts` has the listing's lines, which
:class:`casvm.tasks.ClassesTask` fills in. :func:`casvm.solver.smo.fit_part` solves the problems of a part, one per pair
of classes, and :func:`casvm.solver.active_set.optimise_pairs` updates one pair of rows after the other.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = casvm = SVMMethod(
    name="casvm", summary="random parts of each rank's own rows; training sends nothing", trainer=in_parts, route="all"
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
