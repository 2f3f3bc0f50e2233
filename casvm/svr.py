"""Support vector regression: epsilon-SVR or nu-SVR, one a part, or exact.

In parts (the machinery of Algorithm 5): a partitioner makes P parts, one regression is trained on each, and nothing is
sent meanwhile; a new row is answered by the model of the nearest centre, by those of the nearest four, weighted, or by
the mean of all. About 2 s m nnz flops a part of m rows with s support vectors. Exact: the problem of all rows, of which
every rank holds a share; what that sends is Dis-SMO's.
"""

from casvm.methods import of_values
from casvm.value_options import ValueMethod

METHOD = svr = ValueMethod(
    name="svr",
    summary="regression, in parts or exact",
    trainer=of_values,
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
