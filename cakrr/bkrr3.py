"""BKRR3 (Algorithm 11), an oracle: balanced parts, and for each test row the model that is best there.

It looks at the answers, so it is no method to use but a bound on what routing can reach with these models.
Training is BKRR2's; every test row visits every rank, and one reduction takes the least error.
"""

from cakrr.method import RidgeMethod
from cakrr.methods import in_parts

METHOD = bkrr3 = RidgeMethod(
    name="bkrr3",
    summary="balanced parts, the model that is best for each test row: a bound, not a method",
    trainer=in_parts,
    route="oracle",
    partitioner="kbalance",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
