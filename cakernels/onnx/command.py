"""``cakernels export MODEL OUT.onnx``: write a model of any family as an ONNX file."""

from __future__ import annotations

from cacore import checks
from cacore.comm import Communicator
from cacore.files import check_apart, check_writable, printing, replacing
from cacore.run.launch import Parser, run_alone
from cacore.terminal import say

PROG = "cakernels export"


def main(argv: list[str] | None = None) -> None:
    """Run the command, and end the process."""
    run_alone(lambda comm: _export(comm, argv), PROG, "it works in one process", argv)


def _export(comm: Communicator, argv: list[str] | None) -> None:
    parser = Parser(
        prog=PROG, description="Write a saved model of any family as an ONNX file, which onnxruntime predicts with.",
        epilog="example: cakernels export train.model.h5 train.onnx --dtype float32",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", type=checks.path_argument, help="file of a model")
    parser.add_argument("out", metavar="OUT.onnx", type=checks.path_argument, help="file to write")
    parser.add_argument(
        "--dtype", choices=("float64", "float32"),
        help="floating-point type of the input (default: that of the training rows)",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    asked = parser.parse_args(argv)
    check_apart([("OUT.onnx", asked.out)], [("MODEL", asked.model)])
    check_writable(asked.out)
    from cakernels.families import AllModels
    from cakernels.onnx.export import exported

    model = AllModels().load(asked.model, comm)
    graph = exported(model, dtype=asked.dtype)
    with replacing(asked.out) as temporary:
        temporary.write_bytes(graph.model().SerializeToString())
    if not asked.quiet:
        with printing():
            remark = "" if getattr(model, "calibration", None) is None else "; its intervals are left out"
            say(f"{asked.out}: {graph}{remark}")
