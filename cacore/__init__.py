"""The common layer of cakernels: kernels, communicator, files, grids, reports. It contains no method."""

__version__ = "0.1.0"
