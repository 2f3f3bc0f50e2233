"""CA-SVM (Algorithm 5): random parts, and nothing is sent before prediction.

Each rank deals its own rows to its parts (line 1), trains one SVM a part (line 2), and takes the mean of the part's
rows for its centre (line 3). A new row is predicted by the model of the nearest centre (lines 4 to 9); since the
centres of random parts lie close to each other, ``--route all``, the mean of all decisions, is usually the better
answer here.

About 2 s m nnz flops a part of m rows of nnz nonzeros, for its s support vectors; the kernel cache beside this rank's
rows. Partitioning and training send nothing; a row to predict travels to one rank and back, or visits all of them.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = casvm = SVMMethod(
    name="casvm",
    summary="random parts where the rows are, nothing is sent",
    trainer=in_parts,
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
