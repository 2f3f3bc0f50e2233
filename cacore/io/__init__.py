"""Reading and writing data: HDF5 by blocks of rows, and the text and binary formats of users' files."""

from cacore.data.dataset import Dataset
from cacore.io.arrays import Arrays
from cacore.io.loading import load
from cacore.io.table import Table

__all__ = ["Arrays", "Dataset", "Table", "load"]
