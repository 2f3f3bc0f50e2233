"""KKRR3 (section 3.4), an oracle: parts by K-means, and for each test row the model with the smallest error there.

It needs the true targets of the test rows, so it is not a usable method but a bound on what routing can achieve with
these models. Training is that of KKRR2. Every test row is sent to every rank, and one reduction takes the smallest
error.
"""

from cakrr.options import RidgeMethod

METHOD = kkrr3 = RidgeMethod(
    name="kkrr3",
    summary="oracle: parts by K-means, and the best model for each test row; a bound, not a method",
    trainer="cakrr.methods.task:train",
    route="oracle",
    partitioner="kmeans",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
