"""Cascade SVM (section 2.2, Fig. 2.1): random even parts, whose support vectors go up a tree of merges.

Rows that a random part took for safe are gone, and one pass may be far from the exact solution: on ijcnn1 in
8 parts 97.2 to 97.9 % of the test rows are right, with a second pass 98.6 %, with a third 98.7 % (exact: 98.70 %).
In a further pass every part sees the last support vectors as well. Passes go on while the objective changes,
at most two by default. Support vectors and their coefficients are sent, log2 P times at most.
"""

from casvm.methods import in_a_tree
from casvm.options import SVMMethod

METHOD = cascade = SVMMethod(
    name="cascade",
    summary="random parts, whose support vectors are merged in a tree",
    trainer=in_a_tree,
    merge="support",
    passes=2,
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
