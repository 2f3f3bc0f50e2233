"""Reading and writing data: HDF5 by row blocks, and the text formats users have their data in."""

from cacore.data.dataset import Dataset
from cacore.io.dataset import load
from cacore.io.table import Table

__all__ = ["Dataset", "Table", "load"]
