"""Boxes of rows, and which are near; in few dimensions, neighbours, sparse products, and sparse inverse factors.

=================  =====================================================================================
`boxes`            boxes of rows of any dimension, which of them are near, and a bound on the rest of K
`expansion`        sums of kernel values over near rows alone, for predictions
`correlation`      a kernel of distance, with a taper, and the radius beyond which it is 0
`cubes`            the neighbours of points, found in cubes as wide as that radius
`matrix`           products with the matrix of all correlations, kept or computed again
`inverse`          a sparse triangular factor of the inverse, which nearest neighbours determine
=================  =====================================================================================

Nothing here communicates: a rank's points come first, followed by copies of those that are near them on other ranks.
"""
