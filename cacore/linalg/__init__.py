"""LAPACK and ScaLAPACK, on the caller's own memory."""
