"""The commands around training: predict, export, convert and describe data, check the installation, compile ahead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cacore import checks
from cacore.comm import Communicator
from cacore.files import check_apart, check_writable, printing, replacing
from cacore.machine.threads import cores
from cacore.run.launch import Parser, compiled, parsed, run, run_alone, same_arguments
from cacore.terminal import CellLines, say, say_wrapped, show_table

if TYPE_CHECKING:
    from cacore.run.command import Load


def predict(argv: list[str]) -> None:
    """``cakernels predict MODEL DATA``: predict with a model of any family, which its file names."""
    from cacore.run import command

    def loader() -> Load:
        from cakernels.families import load_with_family  # compiled code, which --help does without

        return load_with_family

    prog = "cakernels predict"
    run(lambda comm: command.predict(loader, prog, comm, argv, command.OWN), prog, argv=argv)


def export(argv: list[str]) -> None:
    """``cakernels export MODEL OUT.onnx``: write a model of any family as an ONNX file."""
    prog = "cakernels export"

    def work(comm: Communicator) -> None:
        parser = Parser(
            prog=prog,
            description="Write a saved model of any family as an ONNX file, which onnxruntime predicts with.",
            epilog="example: cakernels export train.model.h5 train.onnx --dtype float32",
        )  # fmt: skip
        parser.add_argument("model", metavar="MODEL", type=checks.path_argument, help="file of a model")
        parser.add_argument("out", metavar="OUT.onnx", type=checks.path_argument, help="file to write")
        parser.add_argument(
            "--dtype", choices=("float64", "float32"),
            help="floating-point type of the input (default: that of the training rows)",
        )  # fmt: skip
        parser.add_argument("--quiet", action="store_true", help="print nothing")
        arguments = parser.parse_args(argv)
        check_apart([("OUT.onnx", arguments.out)], [("MODEL", arguments.model)])
        check_writable(arguments.out)
        from cakernels.families import load_with_family
        from cakernels.onnx.export import exported

        model, _ = load_with_family(arguments.model, comm)
        graph = exported(model, dtype=arguments.dtype)
        with replacing(arguments.out) as temporary:
            temporary.write_bytes(graph.model().SerializeToString())
        if not arguments.quiet:
            with printing():
                remark = "" if getattr(model, "calibration", None) is None else "; its intervals are left out"
                say(f"{arguments.out}: {graph}{remark}")

    run_alone(work, prog, "it works in one process", argv)


def convert(argv: list[str]) -> None:
    """``cakernels convert SRC DST.h5``: as ``python -m cacore.io convert``."""
    from cacore.io.__main__ import main

    main(["convert", *argv])


def info(argv: list[str]) -> None:
    """``cakernels info MODEL``; of DATA as ``python -m cacore.io info``, without a file ``python -m cacore.info``."""
    if argv[:1] in (["-h"], ["--help"]):
        parser = Parser(
            prog="cakernels info", description="Describe a file of rows or a saved model, or check the installation.",
            epilog="without a file, options are those of python -m cacore.info --help",
        )  # fmt: skip
        parser.add_argument("file", nargs="?", metavar="DATA or MODEL", help="rows: their number, target, and the kind "
                            "of each column; a model: its method, rows, error and columns; no file: versions, ranks, "
                            "cores, memory and speeds of this job, and what is wrong with it")  # fmt: skip
        parser.add_argument("--target", metavar="COLUMN", help="of DATA: name or number of the target column")
        parser.add_argument("--memory-limit", metavar="GIB", help="memory that may be used")
        run_alone(lambda comm: parser.print_help(), "cakernels info", "it works in one process", argv)
    elif any(not word.startswith("-") for word in argv[:1]):
        from cacore.io.model_file import is_model

        if is_model(Path(argv[0])):
            run_alone(lambda comm: _show_model(argv), "cakernels info", "it works in one process", argv)
            return
        from cacore.io.__main__ import main as describe

        describe(["info", *argv])
    else:
        from cacore.info.__main__ import main as check

        check(argv)


def _parameters(attributes: Mapping[str, object]) -> str:
    """Kernel and parameters in a model's attributes."""
    from cacore.run.report import as_text

    kernel = attributes.get("kernel", {"kind": "gaussian"})
    kernel = kernel if isinstance(kernel, dict) else {}
    parameters = {"kernel": kernel.get("kind"), "gamma": None if "sigma" in attributes else kernel.get("gamma")}
    parameters |= {name: value for name, value in attributes.items() if type(value) in (int, float, str)}
    return ", ".join(
        f"{name} {as_text(value)}" for name, value in parameters.items()
        if value is not None and name not in ("method", "family", "labels", "dtype", "parts")
    )  # fmt: skip


def _show_model(argv: list[str]) -> None:
    """Print what a model's file says of it: method, training, and the columns of its rows."""
    from cacore.data.encoding import SUMMARY
    from cacore.io.model_file import Contents
    from cacore.io.names import listed
    from cacore.run.report import as_text, score_text

    parser = Parser(prog="cakernels info", description="Describe a saved model.")
    parser.add_argument("model", metavar="MODEL", type=checks.path_argument, help="file of a model")
    path = parser.parse_args(argv).model
    contents = Contents.of(path)
    attributes, columns, training = contents.attributes, contents.columns, contents.training
    error = training.get("error", {})
    features = as_text(training.get("features") or len(columns.features) or "")
    if columns.features and columns.table is None:
        features += f": numbers {listed(columns.features)}"
    rows = {
        "method": attributes.get("method", contents.family),
        "models": CellLines(
            f"{weight:.2f} {member.get('method', member['family'])}: {_parameters(member)}"
            for weight, member in zip(attributes.get("weights", []), attributes.get("members", []), strict=False)
        ),
        "saved": contents.saved,
        "target": listed(columns.target) or attributes["source"].get("target"),
        "classes": listed([str(label) for label in attributes.get("classes", [])]),
        "parameters": "" if "members" in attributes else _parameters(attributes),
        "parts": f"{contents.parts:,}",
        "training rows": " of ".join(as_text(training[name]) for name in ("rows", "of") if name in training),
        "features": features,
        "key": "" if columns.table is None else columns.table.key,
    }
    with printing():
        say_wrapped(score_text(error) if error else "error unknown: the model was trained without rows to test it on")
        show_table(((name, value) for name, value in rows.items() if value), f"model {path}")
        if columns.table is not None:
            show_table((column.summary for column in columns.table.columns), "columns", SUMMARY)


def warmup(argv: list[str]) -> None:
    """``cakernels warmup``: compile what commands compile on their first run, into the cache beside the package."""
    prog = "cakernels warmup"

    def work(comm: Communicator) -> None:
        arguments = parsed(Parser(prog=prog, description="Compile all code ahead of the first run.", rank=comm.rank),
                           argv, comm)  # fmt: skip
        same_arguments(prog, arguments, comm)
        from cacore.compiled.compiler import check_compiler

        check_compiler()
        from cakernels import warm

        first, second = warm.halves()

        def take(steps: list[warm.Step], timed: bool) -> None:
            for name, step in steps:
                compiled(partial(warm.timed, name, step) if timed else step, comm)

        if comm.size > 1 or len(cores()) == 1:
            take(first + second, comm.rank == 0)
        else:
            with warm.second_half_beside() as finish:
                take(first, True)
                finish()
            take(second, False)

    run(work, prog, argv=argv)
