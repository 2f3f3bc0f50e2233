"""DC-SVM (section 2.2): parts by K-means, and all rows go up a tree of merges with their alpha.

The last problem is the whole one, so the result is exact; its rank holds all rows. Half of the rows are sent at most,
log2 P times.
"""

from casvm.methods import in_a_tree
from casvm.options import SVMMethod

METHOD = dcsvm = SVMMethod(
    name="dcsvm",
    summary="parts by K-means, merged with all rows in a tree: exact",
    trainer=in_a_tree,
    partitioner="kmeans",
    merge="all",
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
