"""KKRR2 (section 3.4): K-means parts, the nearest centre's model answers.

As BKRR2, but on the parts that K-means gives, whatever their sizes: accurate, and as slow as the largest part,
m^3/3 flops and 8 m^2 bytes of its m rows. With more parts than ranks, dealt largest first, most of that loss goes away.
"""

from cakrr.method import RidgeMethod
from cakrr.methods import in_parts

METHOD = kkrr2 = RidgeMethod(
    name="kkrr2",
    summary="K-means parts, the nearest centre's model answers",
    trainer=in_parts,
    route="nearest",
    partitioner="kmeans",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
