"""KKRR2 (section 3.4): parts by K-means; predictions by the model of the nearest centre.

Like BKRR2, but on the parts of K-means, whose sizes differ. It is as accurate, but the largest part, of m rows,
determines the time: m^3/3 flops and 8 m^2 bytes. With more parts than ranks, assigned largest first, most of this
disadvantage disappears.
"""

from cakrr.options import RidgeMethod

METHOD = kkrr2 = RidgeMethod(
    name="kkrr2",
    summary="parts by K-means; predictions by the model of the nearest centre",
    trainer="cakrr.methods.task:train",
    route="nearest",
    partitioner="kmeans",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
