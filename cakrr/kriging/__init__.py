"""Kriging: Gaussian processes in few dimensions, in the words of geostatistics, by near points alone.

=================  =====================================================================================
`options`          the options, and the record of the method
`train`            the algorithm on all ranks
`space`, `drift`   coordinates in which distance counts, and the mean of the field
`likelihood`       range, sill and nugget; `variogram`: what they look like
`regions`, `halo`  a box of space per rank, and what its neighbours share with it; `field`: the points in them
`system`           the linear system, sparse or dense
`model`            predictions, standard deviations and draws (`simulate`); `stored`: its file; `grid`: maps
`family`           the command; `estimator`: the scikit-learn class
=================  =====================================================================================
"""

from __future__ import annotations

from cakrr.kriging.options import KrigingMethod


def _trainer(*given: object) -> object:
    from cakrr.kriging.train import fit

    return fit(*given)  # type: ignore[arg-type]


METHOD = kriging = KrigingMethod(
    name="kriging", summary="Gaussian processes in few dimensions, in the words of geostatistics", trainer=_trainer
)
