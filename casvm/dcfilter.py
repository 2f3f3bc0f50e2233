"""DC-Filter (section 2.3): parts by K-means as in DC-SVM, of which only the support vectors go up, as in Cascade.

Partitioning sends K-means' Allreduces, and each row once. Training sends support vectors and their coefficients, at
most log2 P times.
"""

from casvm.methods import in_a_tree
from casvm.options import SVMMethod

METHOD = dcfilter = SVMMethod(
    name="dcfilter",
    summary="parts by K-means, whose support vectors are merged in a tree",
    trainer=in_a_tree,
    partitioner="kmeans",
    merge="support",
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
