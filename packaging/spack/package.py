"""Spack's recipe of cakernels: ``py-cakernels/package.py`` of a Spack repository."""

import os

from spack.package import (
    EnvironmentModifications,
    depends_on,
    license,  # noqa: A004 - Spack's name
    variant,
    version,
    which,
)
from spack_repo.builtin.build_systems.python import PythonPackage


class PyCakernels(PythonPackage):
    """Kernel SVM and kernel ridge regression that scale over MPI because they avoid communication."""

    pypi = "cakernels/cakernels-0.1.0.tar.gz"
    import_modules = ["asygcd", "cacore", "cakernels", "cakriging", "cakrr", "casvm", "partition"]

    license("BSD-3-Clause")

    version("0.1.0")  # its sha256 comes with the release: spack checksum py-cakernels

    variant("scalapack", default=True, description="Exact ridge regression (cakrr.dkrr) on more than one rank")
    variant("plot", default=False, description="Figures: --plot, and python -m cacore.traffic")
    variant("onnx", default=False, description="Export of models to ONNX files")
    variant("maps", default=False, description="Maps of kriging as GeoTIFF files")
    variant("zarr", default=False, description="Rows in Zarr stores: --input, --output")

    with_run = ("build", "run")
    depends_on("python@3.11:", type=with_run)
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-h5py@3.10:", type=with_run)
    depends_on("py-mpi4py@4.1:", type=with_run)
    depends_on("py-numba@0.60:", type=with_run)
    depends_on("py-numpy@1.26:", type=with_run)
    depends_on("py-pyarrow@16.1: +parquet", type=with_run)
    depends_on("py-rich@13.7:", type=with_run)
    depends_on("py-scikit-learn@1.6:", type=with_run)
    depends_on("py-scipy@1.12:", type=with_run)
    depends_on("py-threadpoolctl@3.5:", type=with_run)
    depends_on("py-matplotlib@3.8:", type=with_run, when="+plot")
    depends_on("py-onnx@1.17:", type=with_run, when="+onnx")
    depends_on("py-rasterio@1.4:", type=with_run, when="+maps")
    depends_on("py-zarr@3.0:", type=with_run, when="+zarr")
    # The wheels of the extras "mpi" and "scalapack" are Spack's own packages here.
    depends_on("mpi", type="run")
    depends_on("scalapack", type="run", when="+scalapack")
    depends_on("lapack", type="run", when="+scalapack")

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        """Say where ScaLAPACK is: libraries are opened one after the other, those that others need first."""
        if self.spec.satisfies("+scalapack"):
            libraries = [*self.spec["scalapack"].libs, *self.spec["lapack"].libs]
            env.set("CAKRR_SCALAPACK", os.pathsep.join(reversed(list(dict.fromkeys(libraries)))))

    def test_info(self) -> None:
        """One rank works, and nothing is wrong with the installation."""
        which(self.spec["python"].command.path)("-m", "cacore.info")
