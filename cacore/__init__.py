"""The floor of cakernels: kernels, communicator, files, grids, reports. It knows no method."""

__version__ = "0.1.0"
