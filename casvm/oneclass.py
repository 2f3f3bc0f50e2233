"""One-class SVM: what the training rows have in common, in parts, or exact. Labels are not used.

In parts (the machinery of Algorithm 5) every part has the region of its own rows, and nothing is sent while they are
trained: a row is of the class if the model of the nearest centre says so, or the weighted mean of the nearest four's
decisions, or the mean of all. About 2 s m nnz flops a part of m rows with s support vectors, of which there are nu m or
more. Exact: the problem of all rows, of which every rank holds a share; what that sends is Dis-SMO's.
"""

from casvm.methods import of_values
from casvm.value_options import ValueMethod

METHOD = oneclass = ValueMethod(
    name="oneclass",
    summary="one class, whose rows are told from outliers, in parts or exact",
    trainer=of_values,
    one_class=True,
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
