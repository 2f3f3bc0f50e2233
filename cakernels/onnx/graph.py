"""Building an ONNX graph: values with arithmetic, constants, loops. The only module that imports ``onnx``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import cacore
from cacore.data.encoding import MISSING, OTHER, PERIODS, Encoding, TableColumn
from cacore.data.kinds import CATEGORY, CLOCK
from cacore.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OUTPUTS = ("prediction", "label", "probabilities", "decisions")
OPSET, ML_OPSET, IR_VERSION = 18, 1, 8  # versions of the operators, of those of ai.onnx.ml, and of the format
ML = "ai.onnx.ml"
_LARGEST = (1 << 31) - (1 << 20)  # bytes of a protobuf message, less what the nodes may take


def _operator(kind: str, reflected: bool = False) -> Callable[[Value, Operand], Value]:
    """A method of :class:`Value` that adds this operator to its graph; `reflected` if the value is on the right."""

    def method(value: Value, other: Operand) -> Value:
        return value.graph.op(kind, *((other, value) if reflected else (value, other)))

    return method


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a graph, by its name; arithmetic with it adds nodes. Python's numbers are constants of float64."""

    graph: Graph
    name: str

    __array_ufunc__ = None  # an array on the left leaves the arithmetic to this class
    __add__, __radd__ = _operator("Add"), _operator("Add", reflected=True)
    __sub__, __rsub__ = _operator("Sub"), _operator("Sub", reflected=True)
    __mul__, __rmul__ = _operator("Mul"), _operator("Mul", reflected=True)
    __truediv__, __rtruediv__ = _operator("Div"), _operator("Div", reflected=True)
    __matmul__, __pow__ = _operator("MatMul"), _operator("Pow")
    __gt__, __ge__ = _operator("Greater"), _operator("GreaterOrEqual")

    def __neg__(self) -> Value:
        return self.graph.op("Neg", self)


Operand = Value | NDArray[np.generic] | np.generic | float


class Graph:
    """An ONNX graph under construction, with one input, "X", or one for each column of a table with words.

    onnxruntime up to 1.22 fails on empty batches, of a whole model or of one part. So a row of zeros follows the rows
    of the input; the outputs leave it out.

    Parameters
    ----------
    dtype : str
        Floating-point type of the input.
    d : int
        Number of features.
    facts : dict of str to str
        Metadata of the file.
    table : Encoding or None
        How the features are made of a table's columns.

    Attributes
    ----------
    X : Value, shape (n + 1, d)
        The n rows of the input, and the row of zeros.
    last : Value, shape (1,)
        Index n of the row of zeros.

    Raises
    ------
    InputError
        The package ``onnx`` is not installed.
    """

    def __init__(self, dtype: str, d: int, facts: dict[str, str], table: Encoding | None = None) -> None:
        try:
            import onnx
        except ImportError as error:
            raise InputError("export to ONNX needs the package onnx: pip install 'cakernels[onnx]'") from error
        self._onnx = onnx
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._bytes = self._names = 0
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._facts = facts
        if table is None:
            rows = self.input("X", np.dtype(dtype), d)
            self._about = f"X (rows x {d}, {dtype})"
        else:
            rows = self.cast(features(self, table), dtype)
            self._about = f"{', '.join(table.names)} (rows x 1 each, text or float64)"
        self.X = self.op("Concat", rows, np.zeros((1, d), dtype), axis=0)
        self.last = self.op("Shape", rows, start=0, end=1)

    def __str__(self) -> str:
        """One line about input, outputs and what computes them."""
        outputs = ", ".join(output.name for output in self._outputs)
        nodes = sorted({f"{node.op_type} in float32" for node in self._nodes if node.op_type.startswith("SVM")})
        by = " and ".join([*nodes, "operators in float64"][: len(nodes) or 1])
        return f"{self._about} -> {outputs}, by {by}, {self._bytes / 2**20:.1f} MiB"

    def op(self, kind: str, *inputs: Operand, **attributes: Any) -> Value:
        """The result of one operator."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: Operand, domain: str = "", **attributes: Any) -> list[Value]:
        """The `count` results of one operator."""
        results = [self._named() for _ in range(count)]
        input_names = [self.value(operand).name for operand in inputs]
        names = [result.name for result in results]
        self._nodes.append(
            self._onnx.helper.make_node(kind, input_names, names, name=names[0], domain=domain, **attributes)
        )
        return results

    def value(self, operand: Operand) -> Value:
        """A value as it is; a number or an array as a constant."""
        if isinstance(operand, Value):
            return operand
        array = np.asarray(operand, np.float64 if isinstance(operand, int | float) else None)
        self.reserve(array.nbytes)
        constant = self._named()
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), constant.name))
        return constant

    def require_room(self, nbytes: int) -> None:
        """Raise an InputError if the file cannot hold constants of so many further bytes."""
        if self._bytes + nbytes > _LARGEST:
            size = (self._bytes + nbytes) / 2**30
            raise InputError(
                f"the ONNX file would have {size:.1f} GiB or more, and the format holds 2 GiB: train the model on "
                "fewer rows, or with fewer features"
            )

    def reserve(self, nbytes: int) -> None:
        """Count constants of so many bytes; an InputError if the file cannot hold them."""
        self.require_room(nbytes)
        self._bytes += nbytes

    def indices(self, *numbers: int) -> NDArray[np.int64]:
        """Integers as operators take them: axes, shapes, positions."""
        return np.array(numbers, np.int64)

    def cast(self, x: Operand, dtype: DTypeLike) -> Value:
        """The value in another type."""
        return self.op("Cast", x, to=self._type(np.dtype(dtype)))

    def reduced(self, kind: str, x: Value, keep: bool = True) -> Value:
        """A reduction over the last axis: "Sum", "Max", "Min" or "SumSquare"."""
        return self.op(f"Reduce{kind}", x, self.indices(-1), keepdims=int(keep))

    def filled(self, x: Value, row: ArrayLike) -> Value:
        """The same row of float64, shape (k,), for each row of `x`, shape (n, k)."""
        repeated = np.asarray(row, np.float64)[None]
        rows = self.op("Shape", x, start=0, end=1)
        return self.op("Expand", repeated, self.op("Concat", rows, self.indices(repeated.shape[1]), axis=0))

    def reshaped(self, x: Value, *shape: int) -> Value:
        """The value in another shape; 0 keeps a dimension, and -1 follows from the others."""
        return self.op("Reshape", x, self.indices(*shape))

    def columns(self, x: Value, which: ArrayLike) -> Value:
        """Columns of `x`, by their numbers; a single number drops the axis."""
        return self.op("Gather", x, np.asarray(which, np.int64), axis=1)

    def loop(self, count: int, state: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
        """The state after `count` times ``state = body(step, *state)``; `step` has shape () and type int64.

        The state's values are of float64. The body can use values from outside.
        """
        helper, kind = self._onnx.helper, self._onnx.TensorProto
        step, going, *held = (self._named() for _ in range(2 + len(state)))
        outside, self._nodes = self._nodes, []
        after = list(body(step, *held))
        still = self.op("Identity", going)
        inside, self._nodes = self._nodes, outside

        def shapeless(values: Sequence[Value]) -> list[ValueInfoProto]:
            return [helper.make_tensor_value_info(variable.name, kind.DOUBLE, None) for variable in values]

        graph = helper.make_graph(
            inside, self._named().name,
            [
                helper.make_tensor_value_info(step.name, kind.INT64, []),
                helper.make_tensor_value_info(going.name, kind.BOOL, []),
                *shapeless(held),
            ],
            [helper.make_tensor_value_info(still.name, kind.BOOL, []), *shapeless(after)],
        )  # fmt: skip
        return self.ops("Loop", len(state), np.int64(count), np.bool_(True), *state, body=graph)

    def input(self, name: str, dtype: np.dtype[np.generic], d: int = 1) -> Value:
        """Declare an input of shape (rows, d)."""
        self._inputs.append(self._described(name, dtype, ["rows", d]))
        return Value(self, name)

    def output(self, name: str, value: Value, dtype: DTypeLike, *shape: int) -> None:
        """Declare an output with these dimensions after that of the rows; it leaves out the last row."""
        inputs = [self.value(operand).name for operand in (value, self.indices(0), self.last, self.indices(0))]
        self._nodes.append(self._onnx.helper.make_node("Slice", inputs, [name], name=name))
        self._outputs.append(self._described(name, np.dtype(dtype), ["rows", *shape]))

    def model(self) -> ModelProto:
        """The finished ``onnx.ModelProto``, checked."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "cakernels", self._inputs, self._outputs, self._constants)
        domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        proto = helper.make_model(
            graph, opset_imports=domains, ir_version=IR_VERSION, producer_name="cakernels",
            producer_version=cacore.__version__,
        )  # fmt: skip
        helper.set_model_props(proto, self._facts)
        self._onnx.checker.check_model(proto)
        return proto

    def _named(self) -> Value:
        self._names += 1
        return Value(self, f"cakernels:{self._names}")

    def _type(self, dtype: np.dtype[np.generic]) -> int:
        if dtype.kind == "U":
            return int(self._onnx.TensorProto.STRING)
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def _described(self, name: str, dtype: np.dtype[np.generic], shape: list[str | int]) -> ValueInfoProto:
        return self._onnx.helper.make_tensor_value_info(name, self._type(dtype), shape)


# Spellings of a gap; operators cannot ignore case or blanks as predictions here do.
_GAPS = ("", "NA", "na", "N/A", "n/a", "#N/A", "NaN", "nan", "<NA>", "NaT", "NULL", "null")
_UNSEEN = "\0"  # stands for every word that the training rows do not have


def features(g: Graph, table: Encoding) -> Value:
    """The features of a table's columns, shape (n, d), which are inputs by name, shape (n, 1).

    Words are inputs of text, in which "" is a gap. Numbers, times of the day such as 1435 for 14:35, and dates as days
    since 1970 are inputs of float64, in which NaN is a gap.
    """
    if clashes := {"", *OUTPUTS} & set(table.names):
        raise InputError(f"column {min(clashes)!r} has the name of an output: rename it in the training rows")
    made = [
        _levels(g, column) if column.kind == CATEGORY else _numbers(g, column)
        for column in table.columns
        if column.features
    ]
    return g.op("Concat", *made, axis=1)


def _levels(g: Graph, column: TableColumn) -> Value:
    """The row of features of each word, by its place in a list of the words."""
    import pyarrow as pa

    words = sorted({*column.levels, *column.means} - {"", MISSING, OTHER})
    gaps = [gap for gap in _GAPS if gap not in words]
    cells = pa.table({column.name: pa.array([*words, _UNSEEN, *gaps], pa.string())})
    rows = Encoding((replace(column, form=""),)).apply(cells)
    places = g.op("LabelEncoder", g.reshaped(g.input(column.name, np.dtype(str)), -1), domain="ai.onnx.ml",
                  classes_strings=[*words, _UNSEEN, *gaps], default_int64=len(words))  # fmt: skip
    return g.op("Gather", rows, places, axis=0)


def _numbers(g: Graph, column: TableColumn) -> Value:
    """The number, minutes or days, the circles of dates, and the mark of a gap."""
    x = g.input(column.name, np.dtype(np.float64))
    gap = g.op("IsNaN", x)
    if column.kind == CLOCK:
        x = x - g.op("Floor", x / 100.0) * 40.0
    filled = g.op("Where", gap, column.fill, x)
    made = [filled]
    for period in column.circles:
        angle = filled * (2.0 * np.pi / PERIODS[period])
        made += [g.op("Cos", angle), g.op("Sin", angle)]
    if column.indicator:
        made.append(g.cast(gap, np.float64))
    return g.op("Concat", *made, axis=1)
