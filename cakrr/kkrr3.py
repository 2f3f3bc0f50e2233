"""KKRR3 (section 3.4), an oracle: K-means parts, and for each test row the model that is best there.

It looks at the answers, so it is no method to use but a bound on what routing can reach with these models.
Training is KKRR2's; every test row visits every rank, and one reduction takes the least error.
"""

from cakrr.method import RidgeMethod
from cakrr.methods import in_parts

METHOD = kkrr3 = RidgeMethod(
    name="kkrr3",
    summary="K-means parts, the model that is best for each test row: a bound, not a method",
    trainer=in_parts,
    route="oracle",
    partitioner="kmeans",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
