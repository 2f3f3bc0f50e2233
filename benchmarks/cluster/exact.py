"""DKRR on many ranks, by formula, since virtual ranks cannot call ScaLAPACK for the factorisation.

Flops, bytes and messages follow Choi, Dongarra, Ostrouchov, Petitet, Walker and Whaley, Scientific Programming 5(3),
1996, for a square grid of R ranks; the flop rate is measured on one core of this machine.
"""

from __future__ import annotations

import time
from math import log2, sqrt

import numpy as np
import scipy.linalg

from cakernels.plan.machine import Network

BLOCK = 64  # columns per block


def rate(n: int = 3000) -> float:
    """Flops per second of LAPACK's Cholesky factorisation with the current number of BLAS threads."""
    A = np.eye(n, order="F") * n + 1.0
    begun = time.thread_time()
    scipy.linalg.lapack.dpotrf(A, lower=1, overwrite_a=1)
    return n**3 / 3 / (time.thread_time() - begun)


def memory(n: int, R: int) -> float:
    """GiB of a rank's share of the matrix."""
    return n * n * 8 / R / 2**30


def seconds(n: int, d: int, R: int, flops_a_second: float, network: Network) -> float:
    """Seconds for one sigma and one lambda: kernel matrix, factor and solution."""
    compute = (n**3 / 3 + 2.0 * n * n * d + 2.0 * n * n) / R / flops_a_second
    if R == 1:
        return compute
    link, stages = network.far(R), log2(R)
    sent = (2 + stages / 2) * n * n / sqrt(R) * 8 * link.per_byte * min(R, network.ranks_per_node)
    return compute + sent + (4 + stages) * n / BLOCK * link.step * (1 + stages / 2)
