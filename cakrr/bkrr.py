"""BKRR (section 3.4): balanced parts, the mean of all models answers.

As KKRR, on K-balance's parts of equal size: as fast as DC-KRR, and as wrong as KKRR.
m^2 d + m^3/3 flops and 8 m^2 bytes a part of m rows and pair; training sends nothing, a prediction is one reduction.
"""

from cakrr.method import RidgeMethod
from cakrr.methods import in_parts

METHOD = bkrr = RidgeMethod(
    name="bkrr",
    summary="balanced parts, the mean of all models answers",
    trainer=in_parts,
    route="all",
    partitioner="kbalance",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
