"""Vector code for the CPU kernels: arg-max, exponentials and draws of a row, sixteen cities at a time.

Compilers make no vector code of an arg-max, and of other loops over a row of 50 cities little more than its
remainder. So these few operations are written as LLVM vectors, which every processor has in some width. A
row's last sixteen cities are the last block, whatever it shares with the one before: nothing is left over,
and rows need no padding. Arrays are flat, with the place where a row begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import cgutils, types

from georoutenet.decode.common import FLOOR
from georoutenet.decode.randomness import LANES

intrinsic: Any = extending.intrinsic  # its type does not say what a call to the result looks like

_I32, _I64, _F32, _F64 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_LONGS = ir.VectorType(_I64, LANES)
_DOUBLES = ir.VectorType(_F64, LANES // 2)
_INT_MAX = 2**31 - 1

OPEN, CLOSED = np.float32(np.inf), np.float32(-np.inf)
"""What a gate says of a city: a limit to its score."""
ALLOWED, FORBIDDEN = -1, 0
"""What a mask of integers says of a city: the bits that stay of its weight."""


def _all(value: float, kind: Any) -> Any:
    """A vector that holds one constant."""
    return ir.Constant(kind, [value] * kind.count)


def _spread(b: Any, value: Any, kind: Any) -> Any:
    """A vector that holds one value."""
    nothing = ir.Constant(kind, ir.Undefined)
    single = b.insert_element(nothing, value, ir.Constant(_I32, 0))
    return b.shuffle_vector(single, nothing, ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count))


def _call(b: Any, name: str, result: Any, *arguments: Any) -> Any:
    """An operation that LLVM knows by name."""
    of = arguments[0].type
    element = {_I32: "i32", _I64: "i64", _F32: "f32", _F64: "f64"}[of.element]
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(b.module, kind, f"llvm.{name}.v{of.count}{element}")
    return b.call(function, arguments)


def _at(context: Any, b: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    """Where a vector lies in an array."""
    place = b.gep(context.make_array(kind)(context, b, array).data, [index])
    return b.bitcast(place, vector.as_pointer())


def _blocks(b: Any, n: Any, body: Callable[[Any], None]) -> None:
    """Run ``body(first)`` for blocks that cover ``n`` cities; the last begins ``LANES`` before the end."""
    size = ir.Constant(_I64, LANES)
    last = b.sub(n, size)
    with cgutils.for_range(b, b.sdiv(b.add(n, ir.Constant(_I64, LANES - 1)), size)) as loop:
        first = b.mul(loop.index, size)
        body(b.select(b.icmp_signed("<", first, last), first, last))


@intrinsic
def first_largest(typing: Any, scores: Any, at: Any, gate: Any, gate_at: Any, n: Any) -> Any:
    """The lowest index of the largest float32 where the gate (float32) is ``OPEN``.

    ``INT_MAX`` where a closer look is due: when nothing above ``FLOOR`` is open, and when the largest is
    infinite or one is not a number. ``n`` is at least ``LANES``.
    """
    signature = types.int64(scores, types.int64, gate, types.int64, types.int64)

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        scores, at, gate, gate_at, n = given
        kinds = signature.args
        best = cgutils.alloca_once_value(b, _all(_single(FLOOR), _FLOATS))
        where = cgutils.alloca_once_value(b, _all(_INT_MAX, _INTS))

        def body(first: Any) -> None:
            x = b.load(_at(context, b, kinds[0], scores, b.add(at, first), _FLOATS), align=4)
            limit = b.load(_at(context, b, kinds[2], gate, b.add(gate_at, first), _FLOATS), align=4)
            x = b.select(b.fcmp_ordered("<", x, limit), x, limit)  # the limit for what is not a number
            old = b.load(best)
            better = b.fcmp_ordered(">", x, old)
            lanes = ir.Constant(_INTS, list(range(LANES)))
            index = b.add(_spread(b, b.trunc(first, _I32), _INTS), lanes)
            b.store(b.select(better, x, old), best)
            b.store(b.select(better, index, b.load(where)), where)

        _blocks(b, n, body)
        # The order of (score, lower index) as one integer for each lane: one reduction and not two.
        bits = b.bitcast(b.fadd(b.load(best), _all(0.0, _FLOATS)), _INTS)  # -0 becomes 0
        order = b.xor(bits, b.and_(b.ashr(bits, _all(31, _INTS)), _all(_INT_MAX, _INTS)))
        order = b.shl(b.sext(order, _LONGS), _all(32, _LONGS))
        keys = b.or_(order, b.zext(b.sub(_all(_INT_MAX, _INTS), b.load(where)), _LONGS))
        top = _call(b, "vector.reduce.smax", _I64, keys)
        index = b.sub(ir.Constant(_I64, _INT_MAX), b.and_(top, ir.Constant(_I64, 2**32 - 1)))
        finite = b.icmp_signed("<", top, ir.Constant(_I64, int(OPEN.view(np.int32)) << 32))
        return b.select(finite, index, ir.Constant(_I64, _INT_MAX))

    return signature, generate


@intrinsic
def fetch(typing: Any, scores: Any, at: Any, n: Any) -> Any:
    """Ask the memory for a row of float32 that is wanted soon."""
    signature = types.void(scores, types.int64, types.int64)

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        scores, at, n = given
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        how = [ir.Constant(_I32, value) for value in (0, 3, 1)]  # to read, to keep, data

        def body(first: Any) -> None:
            place = _at(context, b, signature.args[0], scores, b.add(at, first), _FLOATS)
            b.call(function, [b.bitcast(place, byte), *how])

        _blocks(b, n, body)
        return context.get_dummy_value()

    return signature, generate


class _Kind(NamedTuple):
    """How exponentials are computed in a precision."""

    floats: Any
    ints: Any
    lowest: float  # exp is that of this number below it
    digits: int  # of the significand, without the first
    degree: int
    ln2: tuple[float, float]  # high and low part: the products of the first with whole numbers are exact


_KINDS = {
    types.float32: _Kind(_FLOATS, _INTS, -86.0, 23, 7, (0.693359375, math.log(2.0) - 0.693359375)),
    types.float64: _Kind(
        ir.VectorType(_F64, LANES),
        _LONGS,
        -700.0,
        52,
        13,
        (6.93147180369123816490e-01, 1.90821492927058770002e-10),
    ),
}


def _exponential(b: Any, x: Any, kind: _Kind) -> Any:
    """exp of lanes at most 0 to a unit or two in the last place."""

    def constant(value: float) -> Any:
        return _all(_single(value) if kind.floats is _FLOATS else value, kind.floats)

    def fused(x: Any, y: Any, z: Any) -> Any:
        return _call(b, "fma", kind.floats, x, y, z)

    x = b.select(b.fcmp_ordered(">", x, constant(kind.lowest)), x, constant(kind.lowest))
    shift = constant(1.5 * 2.0**kind.digits)  # adding it rounds: whole numbers are in the lowest bits
    rounded = fused(x, constant(math.log2(math.e)), shift)
    whole = b.fsub(rounded, shift)
    rest = fused(whole, constant(-kind.ln2[0]), x)
    rest = fused(whole, constant(-kind.ln2[1]), rest)
    power = constant(1 / math.factorial(kind.degree))
    for k in range(kind.degree - 1, -1, -1):
        power = fused(power, rest, constant(1 / math.factorial(k)))
    exponent = b.shl(b.bitcast(rounded, kind.ints), _all(kind.digits, kind.ints))
    return b.bitcast(b.add(b.bitcast(power, kind.ints), exponent), kind.floats)


def _single(value: float) -> float:
    return float(np.float32(value))


@intrinsic
def exponentials(typing: Any, scores: Any, at: Any, top: Any, n: Any, out: Any, out_at: Any) -> Any:
    """``out[j] = exp(min(scores[j] - top, 0))`` in the precision of ``out``.

    Scores below ``FLOOR`` count as that. Below ``exp(-86)`` the result is that, and in float64 below
    ``exp(-700)``. ``n`` is at least ``LANES``.
    """
    signature = types.void(scores, types.int64, types.float32, types.int64, out, types.int64)

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        scores, at, top, n, out, out_at = given
        kinds = signature.args
        kind = _KINDS[kinds[4].dtype]
        wide = kind.floats is not _FLOATS
        tops = _spread(b, b.fpext(top, _F64) if wide else top, kind.floats)

        def body(first: Any) -> None:
            z = b.load(_at(context, b, kinds[0], scores, b.add(at, first), _FLOATS), align=4)
            floor = _all(_single(FLOOR), _FLOATS)
            z = b.select(b.fcmp_ordered(">", z, floor), z, floor)
            x = b.fsub(b.fpext(z, kind.floats) if wide else z, tops)
            x = b.select(b.fcmp_ordered("<", x, _all(0.0, kind.floats)), x, _all(0.0, kind.floats))
            place = _at(context, b, kinds[4], out, b.add(out_at, first), kind.floats)
            b.store(_exponential(b, x, kind), place, align=4)

        _blocks(b, n, body)
        return context.get_dummy_value()

    return signature, generate


def _masked(context: Any, b: Any, kinds: Any, given: Any, place: Any, count: int) -> Any:
    """``count`` weights of a row from ``place`` on, in float64, zero where the mask does not allow."""
    weights, at, mask, mask_at, _ = given
    wide = kinds[0].dtype == types.float64
    ints, floats = (_I64, _F64) if wide else (_I32, _F32)
    if count > 1:
        ints, floats = ir.VectorType(ints, count), ir.VectorType(floats, count)
    size = 8 if wide else 4
    bits = b.load(_at(context, b, kinds[0], weights, b.add(at, place), ints), align=size)
    allowed = b.load(_at(context, b, kinds[2], mask, b.add(mask_at, place), ints), align=size)
    chosen = b.bitcast(b.and_(bits, allowed), floats)
    return chosen if wide else b.fpext(chosen, _DOUBLES if count > 1 else _F64)


def _lane_sums(context: Any, b: Any, kinds: Any, given: Any) -> list[Any]:
    """Float64 sums of the weights where the mask allows, each lane on its own, as two halves."""
    sums = [cgutils.alloca_once_value(b, _all(0.0, _DOUBLES)) for _ in range(2)]

    def body(first: Any) -> None:
        for part, total in enumerate(sums):
            place = b.add(first, ir.Constant(_I64, part * LANES // 2))
            w = _masked(context, b, kinds, given, place, LANES // 2)
            b.store(b.fadd(b.load(total), w), total)

    _blocks(b, given[4], body)
    return [b.load(total) for total in sums]


def _moved(b: Any, vector: Any, distance: int) -> Any:
    """A vector's elements moved up, with zeros below them."""
    half = vector.type.count
    order = [half + k - distance if k >= distance else 0 for k in range(half)]
    kind = ir.VectorType(_I32, half)
    return b.shuffle_vector(_all(0.0, vector.type), vector, ir.Constant(kind, order))


@intrinsic
def masked_sum(typing: Any, weights: Any, at: Any, mask: Any, mask_at: Any, size: Any) -> Any:
    """Sum in float64 of weights where the mask allows; ``size`` is a multiple of ``LANES``.

    The mask has integers of the size of the weights, which are float32 or float64.
    """
    signature = types.float64(weights, types.int64, mask, types.int64, types.int64)

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        low, high = _lane_sums(context, b, signature.args, given)
        both = b.fadd(low, high)
        for distance in (4, 2, 1):
            both = b.fadd(both, _moved(b, both, distance))
        return b.extract_element(both, ir.Constant(_I32, LANES // 2 - 1))

    return signature, generate


@intrinsic
def draw(
    typing: Any, weights: Any, at: Any, mask: Any, mask_at: Any, size: Any, uniform: Any, sums: Any
) -> Any:
    """The total of ``masked_sum``, and the city where a running sum passes ``uniform`` of it.

    The sum runs lane by lane; lane ``l`` holds the cities ``l``, ``l + LANES`` and so on. ``sums`` is scratch
    for ``LANES + 1`` float64, the first of them zero. No branch depends on the weights: what lies below the
    target is counted. Rounding may leave the target above all cities of the lane: then the city is ``size``
    or more.
    """
    result = types.Tuple((types.float64, types.int64))
    signature = result(weights, types.int64, mask, types.int64, types.int64, types.float64, sums)

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        *row, uniform, sums = given
        kinds = signature.args
        parts = _lane_sums(context, b, kinds, row)
        base = _all(0.0, _DOUBLES)
        for part, prefix in enumerate(parts):
            for distance in (1, 2, 4):
                prefix = b.fadd(prefix, _moved(b, prefix, distance))
            parts[part] = prefix = b.fadd(prefix, base)
            place = ir.Constant(_I64, 1 + part * LANES // 2)
            b.store(prefix, _at(context, b, kinds[6], sums, place, _DOUBLES), align=8)
            total = b.extract_element(prefix, ir.Constant(_I32, LANES // 2 - 1))
            base = _spread(b, total, _DOUBLES)
        target = b.fmul(uniform, total)
        targets = _spread(b, target, _DOUBLES)
        bits = ir.IntType(LANES // 2)
        below = [b.bitcast(b.fcmp_ordered("<=", prefix, targets), bits) for prefix in parts]
        lane = b.add(*(b.zext(b.ctpop(half), _I64) for half in below))

        running = cgutils.alloca_once_value(b, b.load(_at(context, b, kinds[6], sums, lane, _F64)))
        city = cgutils.alloca_once_value(b, lane)

        def body(first: Any) -> None:
            w = _masked(context, b, kinds, row, b.add(first, lane), 1)
            now = b.fadd(b.load(running), w)
            b.store(now, running)
            passed = b.zext(b.fcmp_ordered("<=", now, target), _I64)
            b.store(b.add(b.load(city), b.mul(passed, ir.Constant(_I64, LANES))), city)

        _blocks(b, row[4], body)
        return context.make_tuple(b, result, (total, b.load(city)))

    return signature, generate
