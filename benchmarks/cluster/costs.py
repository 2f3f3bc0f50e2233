"""Costs of MPI calls on a network, as MPICH sends them; see :mod:`cakernels.plan.machine`, which has the Allreduce."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from cacore.comm.failure import LONGEST, SPIN
from cakernels.plan.machine import Link, Network

# Bytes above which MPICH uses its algorithms for long messages.
LONG_BCAST, LONG_ALLGATHER, LONG_ALLTOALL = 12288, 81920, 256
EAGER = 65536  # bytes above which a sender waits for its receiver
SLACK = 6e-5  # seconds by which a sleep is longer than requested: 50 us of timer slack in Linux, plus the wake-up


def collective(network: Network, call: str, R: int, largest: float, total: float) -> float:
    """Seconds of a collective call after the last rank has arrived.

    Parameters
    ----------
    network : Network
    call : {"barrier", "bcast", "allreduce", "allgather", "alltoall"}
    R : int
    largest : float
        Maximum number of bytes that a rank contributes; for an alltoall, to one receiver.
    total : float
        Bytes of all ranks; for an alltoall, those that the busiest rank sends or receives. See :func:`summary`.
    """
    if call == "allreduce":
        return network.allreduce(R, largest)
    stages, far = network.stages(R), network.far(R)
    barrier = sum(link.step for link, _ in stages)  # dissemination

    def ring(nbytes: float) -> float:
        return (R - 1) * far.step + nbytes * (R - 1) / R * far.per_byte

    if call == "barrier":
        return barrier
    if call == "bcast":
        if largest <= LONG_BCAST or R < 8:
            return sum(link.step + largest * link.per_byte for link, _ in stages)  # binomial tree
        return barrier + ring(2.0 * largest)  # scatter down a tree, then gather around a ring
    if call == "allgather":
        if total < LONG_ALLGATHER:  # recursive doubling
            return barrier + total * (R - 1) / R * far.per_byte
        return ring(total)
    if largest <= LONG_ALLTOALL:  # Bruck's algorithm: half of everything, log2 R times
        return sum(link.step + total / 2.0 * share * link.per_byte for link, share in stages)
    # Pairwise: messages follow each other at the gap, or as fast as bytes go when all ranks of a node send at once.
    near = min(R, network.ranks_per_node)
    per_byte = network.inside.per_byte if near >= R else near * network.between.per_byte
    return far.step + (R - 1) * max(far.gap, 2.0 * far.overhead) + total * per_byte


def message(network: Network, nbytes: int, source: int, dest: int) -> tuple[float, Link]:
    """Seconds from a send to the end of the receive, and the link."""
    same = source // network.ranks_per_node == dest // network.ranks_per_node
    link = network.inside if same else network.between
    return link.step + nbytes * link.per_byte, link


def noticed(network: Network, waited: float) -> float:
    """Seconds until a rank notices an event that happens after `waited` seconds; see `cacore.comm.failure.wait`."""
    if not network.pauses or waited <= SPIN:
        return waited
    looked = SPIN
    while looked < waited and 0.1 * looked < LONGEST:
        looked += 0.1 * looked + SLACK
    return looked + max(0, ceil((waited - looked) / (LONGEST + SLACK))) * (LONGEST + SLACK)


def summary(call: str, sizes: list[Any]) -> tuple[float, float]:
    """`largest` and `total` of :func:`collective`, from the sizes that each rank contributes."""
    if call != "alltoall":
        return float(max(sizes)), float(sum(sizes))
    table = np.array(sizes, np.float64)
    np.fill_diagonal(table, 0.0)
    return float(table.max()), float(max(table.sum(axis=0).max(), table.sum(axis=1).max()))
