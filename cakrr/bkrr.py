"""BKRR (section 3.4): balanced parts; predictions are the mean of all models.

Like KKRR, but with parts of equal size by K-balance: as fast as DC-KRR, and as inaccurate as KKRR.

m^2 d + m^3/3 flops and 8 m^2 bytes per part of m rows and per (sigma, lambda) pair. Training sends nothing; a
prediction is one reduction.
"""

from cakrr.options import RidgeMethod

METHOD = bkrr = RidgeMethod(
    name="bkrr",
    summary="balanced parts; predictions are the mean of all models",
    trainer="cakrr.methods.task:train",
    route="all",
    partitioner="kbalance",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
