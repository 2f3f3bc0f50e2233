"""Assumptions about numba and LLVM, one test for each row of docs/compiled.md; a failure says what to do."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import types

from cacore.compiled import compiler
from cacore.compiled.pointers import (
    Bundle,
    address,
    atomic_add,
    bits32,
    bits64,
    call_kernel,
    caller,
    float32_of,
    float64_of,
    give_way,
    prefetch,
    publish,
    seen,
)
from cacore.compiled.vectors import PANEL_BYTES, STEP, extremes, products
from cacore.kernels.evaluate import compiled
from cacore.kernels.registry import KINDS
from cacore.machine.clock import compiling_time

ROOT = Path(__file__).resolve().parent.parent
ROOM = ROOT / "cacore" / "compiled"
PAGE = (ROOT / "docs" / "compiled.md").read_text()
ROWS = dict(re.findall(r"^\| (C\d+) \| .* \| ([^|]+) \|$", PAGE, re.MULTILINE))  # assumption: what to do
tested = set()


def assumption(row):
    """Mark a test of one assumption: when it fails, the message names the row and what it says to do."""
    tested.add(row)

    @contextmanager
    def explained():
        try:
            yield
        except Exception as error:
            versions = f"numba {numba.__version__}, llvmlite {llvmlite.__version__}"
            pytest.fail(f"{row} of docs/compiled.md does not hold for {versions} ({error!r}): {ROWS[row]}")

    return explained()


# -- vector code -------------------------------------------------------------------------------


@numba.njit
def ends_of(a, b):
    return extremes(a, b, a.size)


@assumption("C1")
def test_pointers_of_llvmlite_know_the_type_of_their_element():
    pointer = ir.DoubleType().as_pointer()
    assert pointer.pointee == ir.DoubleType()


@assumption("C2")
def test_an_intrinsic_reads_arrays_in_vectors():
    a, b = np.random.default_rng(0).normal(size=(2, 3 * STEP))
    assert ends_of(a, b) == (a.max(), b.min())
    assert ends_of(a[STEP:], b[STEP:]) == (a[STEP:].max(), b[STEP:].min())


@numba.njit(error_model="numpy")
def rounded_difference(x, square):
    return x * x - square


@numba.njit(error_model="numpy", fastmath={"contract"})
def fused_difference(x, square):
    return x * x - square


@assumption("C3")
def test_multiply_and_add_are_fused_only_where_contract_allows_it():
    x = 1 + 2.0**-30
    assert rounded_difference(x, x * x) == 0.0
    fused = 2.0**-60 if llvmlite.binding.get_host_cpu_features().get("fma") else 0.0
    if llvmlite.binding.get_process_triple().startswith("x86_64"):
        assert fused_difference(x, x * x) == fused


@numba.njit
def panel_products(values, columns, panel, out):
    products(values, columns, 0, values.size, panel, 0, out, 0)


@assumption("C4")
def test_sums_of_a_panel_are_fused_in_the_order_of_the_features():
    width = PANEL_BYTES // 8
    rng = np.random.default_rng(0)
    values, panel, out = rng.normal(size=3), rng.normal(size=(3, width)), np.empty(width)
    panel_products(values, np.arange(3, dtype=np.int32), panel, out)
    np.testing.assert_allclose(out, values @ panel, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@assumption("C5")
def test_kernel_loops_are_vector_code(dtype):
    real = {"float32": "float", "float64": "double"}[dtype]
    scalar = numba.from_dtype(np.dtype(dtype))
    signature = types.void(scalar[::1], scalar, scalar[::1], scalar, scalar, types.int64)
    code = numba.cfunc(signature, error_model="numpy", fastmath={"contract"})(KINDS["gaussian"].row).inspect_llvm()
    assert re.search(rf"fmul[a-z ]* <\d+ x {real}>", code), f"no vectors of {real}"


@numba.njit
def optional(v, width):
    if width is not None:
        return v + width.real
    return v


@assumption("C6")
def test_branches_of_a_none_are_not_compiled():
    assert optional(1.0, None) == 1.0  # None.real does not compile
    assert optional(1.0, 2.0) == 3.0


@numba.njit
def through_bits(x, y):
    return float64_of(bits64(x) + (1 << 52)), float32_of(np.int32(bits32(y) + np.int32(1 << 23)))


@assumption("C7")
def test_bits_of_numbers():
    assert through_bits(1.5, np.float32(1.5)) == (3.0, 3.0)


# -- memory shared by threads ------------------------------------------------------------------


@numba.njit(nogil=True)
def add_and_publish(totals, counter, times):
    for k in range(times):
        atomic_add(totals, 0, 1.0)
        prefetch(totals, k)
    publish(counter, 0, times)


@numba.njit(nogil=True)
def wait_for(counter, times):
    while seen(counter, 0) < times:
        give_way()
    return seen(counter, 0)


@assumption("C8")
def test_atomic_operations_of_threads():
    totals, counters, times = np.zeros(1), np.zeros((2, 1), np.int64), 100_000
    threads = [threading.Thread(target=add_and_publish, args=(totals, line, times)) for line in counters]
    for thread in threads:
        thread.start()
    assert [wait_for(line, times) for line in counters] == [times, times]
    assert totals[0] == 2 * times


# -- arrays and functions by address -----------------------------------------------------------


class Pair(NamedTuple):
    numbers: np.ndarray
    count: int


@numba.njit(cache=False)
def total(pair, factor):
    """Sum of the numbers, times a factor; a ValueError for a negative one."""
    if factor < 0:
        raise ValueError("negative")
    return factor * pair.numbers[: pair.count].sum(), pair.count


_TOTAL = types.Tuple([types.float64, types.int64])
_by_address = caller(_TOTAL, types.int64, types.float64)


@numba.njit
def total_by_address(function, bundle, factor):
    return _by_address(function, bundle, factor)


@assumption("C9")
def test_a_bundle_is_one_pointer_to_its_arrays():
    numbers = np.arange(6.0)
    assert total(Bundle(Pair(numbers, 4)), 2.0) == (12.0, 4)


@assumption("C10")
def test_functions_are_called_by_address_and_raise():
    bundle = Bundle(Pair(np.arange(6.0), 4))
    function = address(total, _TOTAL, (bundle.kind, types.float64))
    assert total_by_address(function, bundle.address, 2) == (12.0, 4)
    with pytest.raises(ValueError, match="negative"):
        total_by_address(function, bundle.address, -1)


@numba.njit
def kernel_row(function, row, b):
    call_kernel(function, row, 0.0, b, 0.5, 0.0, 0)


@assumption("C11")
def test_a_cfunc_takes_arrays_without_a_reference_count():
    row, b = np.zeros(STEP), np.linspace(0.0, 2.0, STEP)
    kernel_row(compiled(KINDS["gaussian"].row, np.dtype(float)).address, row, b)
    np.testing.assert_allclose(row, np.exp(-0.5 * b), rtol=1e-14)


# -- the compiler ------------------------------------------------------------------------------


@assumption("C12")
def test_numba_tells_when_it_compiles():
    calls, before = [], compiling_time()
    with compiler.on_compilation(lambda: calls.append(1), lambda: calls.append(-1)):
        assert numba.njit(lambda x: x + 1)(1) == 2
    depths = np.cumsum(calls)
    assert depths.max() > 0 == depths[-1] == depths.min()
    assert compiling_time() > before  # by the events of the lock


@assumption("C13")
def test_tables_of_numba_are_loaded_before_the_first_call():
    compiler.load_targets()
    compiler.load_targets()  # a second time is no harm
    assert numba.njit(lambda x: np.sqrt(x))(4.0) == 2.0


# -- the page ----------------------------------------------------------------------------------


def test_each_assumption_of_the_page_has_a_test():
    assert tested == set(ROWS), "docs/compiled.md and this file list different assumptions: add a row or a test"


def test_nothing_else_relies_on_internals():
    internal = re.compile(r"^\s*(from|import) (llvmlite|numba\.(core|np|extending import .*intrinsic))\b", re.MULTILINE)
    packages = ("asygcd", "cacore", "cakernels", "cakriging", "cakrr", "casvm", "partition")
    sources = [path for name in packages for path in (ROOT / name).rglob("*.py") if path.parent != ROOM]
    elsewhere = sorted(str(path.relative_to(ROOT)) for path in sources if internal.search(path.read_text()))
    assert not elsewhere, f"move this to cacore/compiled, with a row in docs/compiled.md and a test: {elsewhere}"
