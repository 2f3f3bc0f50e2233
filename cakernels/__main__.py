"""``cakernels COMMAND ...``, or ``[mpiexec -n R] python -m cakernels COMMAND ...``."""

from __future__ import annotations

import sys
from importlib import import_module

from cacore import __version__
from cacore.comm import first_prints, launched_rank
from cacore.terminal import say

# What each command does, in one line, and the function that runs it.
COMMANDS = {
    "fit": ("choose a model for a data file by itself, within a time, and train it", "cakernels.fit"),
    "predict": ("predict with a saved model of any family", "cakernels.tools"),
    "plan": ("plan a training on a cluster: seconds, memory, bytes, and a job script", "cakernels.plan.command"),
    "explain": ("what each feature adds to a model's answers, by Shapley values", "cakernels.explain.command"),
    "report": ("a page of one or several runs, from their reports", "cakernels.run_page"),
    "export": ("write a saved model as an ONNX file", "cakernels.tools"),
    "convert": ("convert data files to the native HDF5 layout", "cakernels.tools"),
    "info": ("describe a data file or a model; without one, check the installation or the job", "cakernels.tools"),
    "warmup": ("compile all code ahead of the first run", "cakernels.tools"),
}
USAGE = "usage: cakernels {" + ",".join(COMMANDS) + "} ..."


def main(argv: list[str] | None = None) -> None:
    """Run the command that the first word names, and end the process."""
    words = sys.argv[1:] if argv is None else argv
    name, arguments = (words[0], words[1:]) if words else ("", [])
    if name == "--version":
        if launched_rank() == 0:
            say(f"cakernels {__version__}")
        sys.exit(0)
    if name in ("", "-h", "--help"):
        if launched_rank() == 0:
            listing = [f"  {command:<8}  {text}" for command, (text, _) in COMMANDS.items()]
            say(USAGE, "", *listing, "", "cakernels COMMAND --help lists the options of a command.")
        sys.exit(0 if name else 2)
    if name not in COMMANDS:
        first_prints(f"cakernels: {name}: there is no such command; choose one of {', '.join(COMMANDS)}")
        sys.exit(2)
    module = import_module(COMMANDS[name][1])
    getattr(module, "main" if hasattr(module, "main") else name)(arguments)


if __name__ == "__main__":
    main()
