"""DC-KRR (Algorithm 8): random even parts; predictions are the mean of all models.

Shuffled rows are dealt evenly (lines 1 to 5), and one model is trained on each part, which sends nothing (lines 6 to
12). A new row is predicted by the mean of all P models, in one reduction (lines 13 to 15; Zhang, Duchi and Wainwright,
2013).

m^2 d + m^3/3 flops and 8 m^2 bytes per part of m rows and per (sigma, lambda) pair.
"""

from cakrr.options import RidgeMethod

METHOD = dckrr = RidgeMethod(
    name="dckrr",
    summary="random even parts; predictions are the mean of all models",
    trainer="cakrr.methods.task:train",
    route="all",
    partitioner="random",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
