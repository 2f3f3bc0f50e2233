"""``python -m cakernels.patch SCRIPT ARGS``: run a program whose scikit-learn is patched by this package."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cacore.errors import InputError
from cacore.terminal import say
from cakernels.dropin import patch_sklearn

USAGE = """usage: python -m cakernels.patch [--verbose] SCRIPT [ARGS ...]
       python -m cakernels.patch [--verbose] -m MODULE [ARGS ...]

Run a Python program in which cakernels trains scikit-learn's SVC, NuSVC, SVR, NuSVR, OneClassSVM and KernelRidge.

--verbose  print a line to stderr for each kind of call that is taken over, or left to scikit-learn, and why"""


def program(words: list[str]) -> Callable[[], object]:
    """The program that the words name, with the words behind it as its arguments, ready to run patched.

    Raises
    ------
    InputError
        No program is named, or it does not exist.
    """
    verbose = words[:1] == ["--verbose"]
    words = words[verbose:]
    if not words:
        raise InputError("name a script or -m MODULE; --help says more")
    if words[0] in ("-h", "--help"):
        return partial(say, USAGE)
    if words[0] == "-m":
        words = words[1:]
        if not words:
            raise InputError("-m: name a module")
        sys.path[0] = str(Path.cwd())
        if words[0].startswith(".") or not _is_program(words[0]):
            raise InputError(f"-m {words[0]}: there is no such module, or package with __main__")
        run: Callable[[], object] = partial(runpy.run_module, words[0], run_name="__main__", alter_sys=True)
    else:
        script = _script(words[0])
        sys.path[0] = str(script.resolve().parent)
        run = partial(runpy.run_path, str(script), run_name="__main__")
    sys.argv = words
    patch_sklearn(verbose)
    return run


def _script(word: str) -> Path:
    """The script, or the folder of a program."""
    if word.startswith("-"):
        raise InputError(f"{word}: there is no such option; --help lists them")
    script = Path(word)
    if not script.exists():
        raise InputError(f"{script}: there is no such file")
    if script.is_dir() and not (script / "__main__.py").exists():
        raise InputError(f"{script}: there is no program in this folder (__main__.py)")
    return script


def _is_program(module: str) -> bool:
    """True if the module exists and is a program; a package is one by its __main__."""
    try:
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{module}.__main__")
        return spec is not None
    except (ModuleNotFoundError, ValueError):  # a package around it is missing, or it is __main__
        return False


if __name__ == "__main__":
    try:
        run = program(sys.argv[1:])
    except InputError as error:
        say(f"cakernels.patch: {error}", error=True)
        sys.exit(2)
    run()
