"""Rows that are near each other, for kernels that vanish or are cut beyond a radius.

=============  =====================================================================================
`boxes`        boxes of rows of any dimension, which of them are near, and a bound on the rest of K
`expansion`    sums of kernel values over near rows alone, for predictions
`halo`         rows and numbers that ranks borrow from each other, rows sent to the rank of their region, and
               new rows that visit only the ranks with rows near theirs
=============  =====================================================================================
"""
