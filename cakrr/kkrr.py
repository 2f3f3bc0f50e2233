"""KKRR (section 3.4): parts by K-means; predictions are the mean of all models.

The first step from DC-KRR, and a lesson: the models of distant parts differ, and each of them is inaccurate away from
its own rows, so their mean is worse than that of models of random parts.

m^2 d + m^3/3 flops and 8 m^2 bytes per part of m rows and per (sigma, lambda) pair. Training sends nothing; a
prediction is one reduction.
"""

from cakrr.options import RidgeMethod

METHOD = kkrr = RidgeMethod(
    name="kkrr",
    summary="parts by K-means; predictions are the mean of all models",
    trainer="cakrr.methods.task:train",
    route="all",
    partitioner="kmeans",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
