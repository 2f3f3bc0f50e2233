"""Points in few dimensions and correlations of finite range: neighbours, sparse products, and sparse inverse factors.

=================  =====================================================================================
`correlation`      a kernel of distance, with a taper, and the radius beyond which it is 0
`cubes`            the neighbours of points, found in cubes as wide as that radius
`matrix`           products with the matrix of all correlations, kept or computed again
`inverse`          a sparse triangular factor of the inverse, which nearest neighbours determine
=================  =====================================================================================

Nothing here communicates: a rank's points come first, followed by copies of those that are near them on other ranks.
"""
