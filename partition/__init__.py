"""Partitioners: who owns which row, where the centres are, and how new rows are routed to them."""

from partition.balanced import FCFS, BalancedKMeans, KBalance
from partition.base import Partitioner
from partition.kmeans import KMeans
from partition.random import RandomPartition

BY_NAME: dict[str, type[Partitioner]] = {
    "random": RandomPartition,
    "fcfs": FCFS,
    "kmeans": KMeans,
    "bkm": BalancedKMeans,
    "kbalance": KBalance,
}

__all__ = ["BY_NAME", "FCFS", "BalancedKMeans", "KBalance", "KMeans", "Partitioner", "RandomPartition"]
