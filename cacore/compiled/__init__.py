"""The room for code that relies on numba's or LLVM's internals: docs/compiled.md lists what is assumed of them.

No other module of the packages imports ``llvmlite``, ``numba.core``, ``numba.np`` or numba's ``intrinsic``.
"""
