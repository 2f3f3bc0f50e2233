"""One-class SVM, which separates outliers from the training distribution: in parts, or exact. It ignores labels.

In parts (as in Algorithm 5), every part learns the region of its own rows; training sends nothing. A new row is judged
by the model of the nearest centre, by the weighted mean of the nearest four models' decisions, or by the mean of all.
Training takes about 2 s m nnz flops per part of m rows with s support vectors, and s is at least nu m.

With ``--exact``, one problem of all rows is solved, which are distributed over the ranks, as in Dis-SMO.
"""

from casvm.methods import of_values
from casvm.options import ValueMethod

METHOD = oneclass = ValueMethod(
    name="oneclass", summary="one-class SVM for outlier detection, in parts or exact", trainer=of_values, one_class=True
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
