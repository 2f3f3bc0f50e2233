"""LAPACK and ScaLAPACK in place; conjugate gradients and pivoted Cholesky over ranks."""
