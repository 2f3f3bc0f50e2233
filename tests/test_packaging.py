"""Packaging for HPC centres: it compiles, it names what pyproject.toml names, and ReFrame really runs its tests."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cacore import __version__

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {name.removesuffix("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
CENTRE = (os.environ.get("CAKERNELS_REFRAME"), shutil.which("reframe"), str(Path(sys.executable).parent / "reframe"))
REFRAME = next((path for path in CENTRE if path and Path(path).exists()), None)


def said(module):
    """Every string of a module but its docstrings; of f-strings, the constant pieces."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = (node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [node.value for node in strings if id(node) not in alone]


def test_messages_name_nothing_that_a_wheel_lacks():
    """Whoever installed a wheel has the packages alone, and neither examples nor pages."""
    modules = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    missing = re.compile(r"\b(examples|benchmarks|tests|jobs|docs|packaging)[/.]\w|\w\.md\b")
    found = [f"{path.relative_to(ROOT)}: {text}" for path in modules for text in said(path) if missing.search(text)]
    assert len(modules) > 100
    assert found == []


def bounds(requirements):
    """Lower bounds by name."""
    parts = [re.fullmatch(r"([\w-]+)>=([\d.]+)(;.*)?", requirement) for requirement in requirements]
    assert all(parts), requirements
    return {part[1]: part[2] for part in parts}


@pytest.fixture(scope="module")
def recipe():
    """The calls in the class of Spack's recipe, by name: their arguments, and keywords that are constants."""
    text = (PACKAGING / "spack" / "package.py").read_text()
    compile(text, "package.py", "exec")
    (body,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert [base.id for base in body.bases] == ["PythonPackage"]
    assert body.name == "PyCakernels"
    calls, constants = {}, {}
    for node in body.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            words = [ast.literal_eval(word) for word in node.value.args]
            more = {
                one.arg: constants[one.value.id] if isinstance(one.value, ast.Name) else ast.literal_eval(one.value)
                for one in node.value.keywords
            }
            calls.setdefault(node.value.func.id, []).append((words, more))
        elif isinstance(node, ast.Assign):
            constants[node.targets[0].id] = ast.literal_eval(node.value)
    return calls, constants


def needed(calls, kind, when=None):
    """Dependencies of Spack's Python packages, of this type and with this condition, as `bounds` has them."""
    found = [words[0] for words, more in calls["depends_on"] if kind in more["type"] and more.get("when") == when]
    return {
        name.removeprefix("py-"): bound
        for name, bound in re.findall(r"^((?:py-)[\w-]+)@([\d.]+):(?: \+\w+)?$", "\n".join(found), re.M)
    }


def test_spack_needs_what_the_package_needs(recipe):
    calls, _ = recipe
    project = PROJECT["project"]
    assert needed(calls, "run") == bounds(project["dependencies"])
    for extra in ("plot", "onnx", "zarr"):
        assert needed(calls, "run", f"+{extra}") == bounds(project["optional-dependencies"][extra])
    built = needed(calls, "build")
    assert {name: built[name] for name in set(built) - set(needed(calls, "run"))} == bounds(
        PROJECT["build-system"]["requires"]
    )
    (python,) = [words[0] for words, _ in calls["depends_on"] if words[0].startswith("python")]
    assert project["requires-python"] == f">={python.removeprefix('python@').removesuffix(':')}"
    named = {words[0].split("@")[0] for words, _ in calls["depends_on"]}
    assert named - {f"py-{name}" for name in {**built, "matplotlib": "", "onnx": "", "rasterio": "", "zarr": ""}} == {
        "python",
        "mpi",
        "scalapack",
        "lapack",
    }


def test_spack_knows_the_extras(recipe):
    """Each extra for users is a variant, or a package of Spack's own."""
    calls, _ = recipe
    variants = {words[0] for words, _ in calls["variant"]}
    assert variants | {"mpi", "docs", "test", "dev", "all"} == set(PROJECT["project"]["optional-dependencies"])


def test_spack_has_the_version_the_license_and_the_packages(recipe):
    calls, constants = recipe
    assert __version__ in [words[0] for words, _ in calls["version"]]
    assert constants["pypi"] == f"cakernels/cakernels-{__version__}.tar.gz"
    assert [words for words, _ in calls["license"]] == [[PROJECT["project"]["license"]]]
    assert set(constants["import_modules"]) == PACKAGES


def test_apptainer_copies_what_an_installation_needs():
    text = (PACKAGING / "apptainer.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.M | re.S))
    assert set(sections) == {"files", "post", "environment", "runscript", "test", "help"}
    copied = {line.split()[0] for line in sections["files"].splitlines() if line.strip()}
    files = {"setup.py", "pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert copied == files | PACKAGES
    assert all((ROOT / name).exists() for name in copied)
    extras = re.search(r"\[([\w,]+)\]", sections["post"])[1].split(",")
    assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])


def test_citation_has_the_version_and_the_license():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in text
    assert f"\nlicense: {PROJECT['project']['license']}\n" in text


def test_conda_needs_what_the_package_needs():
    """Read by words, since nothing else here reads YAML."""
    text = (PACKAGING / "conda" / "recipe.yaml").read_text()
    values = dict(re.findall(r'^  (version|python_min): "([\d.]+)"$', text, re.M))
    project = PROJECT["project"]
    assert values == {"version": __version__, "python_min": project["requires-python"].removeprefix(">=")}
    sections = re.search(r"^  host:\n(.*?)^  run:\n(.*?)^  run_constraints:\n(.*?)^tests:", text, re.M | re.S)
    host, run, optional = (dict(re.findall(r"^    - ([\w-]+) >=([\d.]+)$", part, re.M)) for part in sections.groups())
    assert run == bounds(project["dependencies"])
    assert host == bounds(PROJECT["build-system"]["requires"])
    extras = {name.removesuffix("-base"): least for name, least in optional.items()}  # conda's matplotlib-base
    assert extras == {k: v for name in ("plot", "onnx") for k, v in
                      bounds(project["optional-dependencies"][name]).items()}  # fmt: skip
    assert set(re.search(r"imports: \[(.*)\]", text)[1].split(", ")) == PACKAGES
    assert f"license: {project['license']}\n" in text


def test_easybuild_has_versions_that_are_new_enough():
    (file,) = (PACKAGING / "easybuild").glob("*.eb")
    values = {}
    exec(file.read_text(), {"SOURCE_TAR_GZ": "", "SHLIB_EXT": "so"}, values)
    assert (values["name"], values["version"]) == ("cakernels", __version__)
    assert file.name == "cakernels-{version}-{toolchain[name]}-{toolchain[version]}.eb".format(**values)
    given = dict(values["dependencies"])
    given["pyarrow"] = given.pop("Arrow")
    beside = {"numpy", "scipy"}, {"rich", "threadpoolctl"}  # in SciPy-bundle, and in Python-bundle-PyPI
    wanted = bounds([*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["plot"]])
    assert set(wanted) - set.union(*beside) == set(given) - {"Python", "SciPy-bundle", "Python-bundle-PyPI"}
    number = lambda version: tuple(map(int, version.split(".")))  # noqa: E731
    assert all(number(given[name]) >= number(least) for name, least in wanted.items() if name in given)
    assert number(given["Python"]) >= number(PROJECT["project"]["requires-python"].removeprefix(">="))


# -- ReFrame -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((PACKAGING / "reframe").rglob("*.py")), ids=lambda path: path.name)
def test_reframe_files_compile(path):
    compile(path.read_text(), str(path), "exec")


@pytest.mark.skipif(
    REFRAME is None,
    reason="no ReFrame: pip install reframe-hpc in its own environment, and name its program in CAKERNELS_REFRAME",
)
def test_reframe_runs(tmp_path):
    """Both tests pass on this machine, by mpiexec; with another interpreter than there is, both fail."""
    folder, beside = PACKAGING / "reframe", str(Path(sys.executable).parent)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_", "MPI_", "RFM_"))}
    paths = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    ranks = min(2, len(os.sched_getaffinity(0)))  # more than cores would be told as a fault
    for python, passes in ((sys.executable, True), ("/nonexistent/python", False)):
        words = ["-C", folder / "local.py", "-c", folder / "cakernels.py", "-r", "--prefix", tmp_path, "--nocolor"]
        done = subprocess.run(
            [REFRAME, *map(str, words), "-S", f"num_tasks={ranks}", "-S", f"python={python}"], cwd=tmp_path,
            env={**kept, "PATH": os.pathsep.join([beside, kept["PATH"]]), "PYTHONPATH": paths}, capture_output=True,
            text=True, timeout=1200, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == passes, done.stdout + done.stderr
        assert f"Ran 2/2 test case(s) from 2 check(s) ({0 if passes else 2} failure(s)" in done.stdout, done.stdout
