"""DC-SVM (section 2.2): parts by K-means, whose rows all go up a tree of merges, with their alpha as the start.

The last problem contains all rows, so the result is exact, but one rank must hold all rows. At most half of the rows
are sent per layer, in log2 P layers.
"""

from casvm.methods import in_a_tree
from casvm.options import SVMMethod

METHOD = dcsvm = SVMMethod(
    name="dcsvm",
    summary="exact: parts by K-means, all of whose rows are merged in a tree",
    trainer=in_a_tree,
    partitioner="kmeans",
    merge="all",
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
