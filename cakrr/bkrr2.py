"""BKRR2 (Algorithm 10): balanced parts, the nearest centre's model answers.

K-balance clustering gives P parts of equal size, each with a centre (lines 1 to 7). One model is trained on each part
(lines 9 to 12), and nothing is sent meanwhile. A new row is predicted by the model of the nearest centre (lines 13 to
17); the errors of all pairs of sigma and lambda are one reduction (lines 18 to 22).

m^2 d + m^3/3 flops and 8 m^2 bytes a part of m rows and pair (many lambdas of one sigma together: 4/3 m^3). Each row
is sent once to the rank of its part; training sends nothing; a row to predict travels to one rank and back.
"""

from cakrr.method import RidgeMethod
from cakrr.methods import in_parts

METHOD = bkrr2 = RidgeMethod(
    name="bkrr2",
    summary="balanced parts, the nearest centre's model answers",
    trainer=in_parts,
    route="nearest",
    partitioner="kbalance",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
