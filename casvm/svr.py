"""Support vector regression, epsilon-SVR or nu-SVR: one model per part, or one exact model of all rows.

In parts (as in Algorithm 5), a partitioner makes P parts, and one regression is trained on each; training sends
nothing. A new row is predicted by the model of the nearest centre, by the weighted mean of the nearest four models, or
by the mean of all. Training takes about 2 s m nnz flops per part of m rows with s support vectors.

With ``--exact``, one problem of all rows is solved, which are distributed over the ranks, as in Dis-SMO.
"""

from casvm.methods import of_values
from casvm.options import ValueMethod

METHOD = svr = ValueMethod(name="svr", summary="support vector regression, in parts or exact", trainer=of_values)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
