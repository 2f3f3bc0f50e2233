"""KKRR (section 3.4): K-means parts, the mean of all models answers.

The first step from DC-KRR, and a lesson: models of parts that lie apart differ, and away from its own rows
each of them says little, so their mean is worse than that of models of random parts.
m^2 d + m^3/3 flops and 8 m^2 bytes a part of m rows and pair; training sends nothing, a prediction is one reduction.
"""

from cakrr.method import RidgeMethod
from cakrr.methods import in_parts

METHOD = kkrr = RidgeMethod(
    name="kkrr",
    summary="K-means parts, the mean of all models answers",
    trainer=in_parts,
    route="all",
    partitioner="kmeans",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
