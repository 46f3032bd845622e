"""Vector code for the CPU kernels: arg-max, exponentials and draws of a row, many cities at a time.

Compilers make no vector code of an arg-max, and of other loops over a row of 50 cities little more than its
remainder. So these few operations are written as LLVM vectors, which every processor has in some width.

A row is given by the address of its first number. Whole blocks of ``WIDE`` cities are read: what lies
behind a row must be readable, and is never open. Which cities are open is said by bits, 64 to a word, also
by address.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending
from numba.core import cgutils, types

from georoutenet.decode.common import FLOOR
from georoutenet.decode.randomness import LANES

intrinsic: Any = extending.intrinsic  # its type does not say what a call to the result looks like

WIDE = 2 * LANES
"""Cities of a block."""
LEAST, SHIFT = -160.0, 110
"""Weights are ``exp(x) * 2**SHIFT`` for x from ``LEAST`` to 0: all of the range of float32 is used."""
HEAD = 2 * LANES
"""Numbers before the running sums of a draw: zeros, then the sums up to each lane."""

_I1, _I32, _I64, _F32, _F64 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()

# exp on [-ln 2 / 2, ln 2 / 2] with a relative error of at most 7.6e-8: the best polynomial of degree five.
_POLYNOMIAL = (
    1.0,
    0.9999997019767761,
    0.4999914765357971,
    0.1666763722896576,
    0.04189802333712578,
    0.008290296420454979,
)


def _long(value: int) -> Any:
    return ir.Constant(_I64, value)


def _all(value: float, count: int, kind: Any = _F32) -> Any:
    """A vector that holds one constant."""
    number = float(np.float32(value)) if kind is _F32 else value
    return ir.Constant(ir.VectorType(kind, count), [number] * count)


def _spread(b: Any, value: Any, count: int) -> Any:
    """A vector that holds one value."""
    nothing = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    single = b.insert_element(nothing, value, ir.Constant(_I32, 0))
    return b.shuffle_vector(single, nothing, _all(0, count, _I32))


def _place(b: Any, row: Any, index: Any, kind: Any) -> Any:
    """Where the float32 with an index lies."""
    return b.inttoptr(b.add(row, b.shl(index, _long(2))), kind.as_pointer())


def _load(b: Any, row: Any, index: Any, count: int) -> Any:
    return b.load(_place(b, row, index, ir.VectorType(_F32, count)), align=4)


def _store(b: Any, value: Any, row: Any, index: Any) -> None:
    b.store(value, _place(b, row, index, value.type), align=4)


def _opened(b: Any, bits: Any, first: Any, count: int) -> Any:
    """Which of ``count`` cities are open; ``first`` is a multiple of that."""
    place = b.add(bits, b.lshr(first, _long(3)))
    word = b.load(b.inttoptr(place, ir.IntType(count).as_pointer()), align=count // 8)
    return b.bitcast(word, ir.VectorType(_I1, count))


def _larger(b: Any, x: Any, y: Any) -> Any:
    """The larger one; y where x is not a number."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _reduced(b: Any, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """All elements of a vector combined."""
    while x.type.count > 1:
        half = x.type.count // 2
        orders = [ir.Constant(ir.VectorType(_I32, half), list(range(at, at + half))) for at in (0, half)]
        x = combine(*(b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), order) for order in orders))
    return b.extract_element(x, ir.Constant(_I32, 0))


def _any(b: Any, found: Any) -> Any:
    word = ir.IntType(found.type.count)
    return b.icmp_unsigned("!=", b.bitcast(found, word), ir.Constant(word, 0))


def _fused(b: Any, x: Any, y: Any, z: Any) -> Any:
    kind = ir.FunctionType(x.type, [x.type] * 3)
    return b.call(cgutils.get_or_insert_function(b.module, kind, f"llvm.fma.v{x.type.count}f32"), [x, y, z])


def _blocks(b: Any, n: Any, body: Callable[[Any], None]) -> None:
    """Run ``body(first)`` for the blocks that cover ``n`` cities."""
    count = b.udiv(b.add(n, _long(WIDE - 1)), _long(WIDE))
    with cgutils.for_range(b, count) as loop:
        body(b.mul(loop.index, _long(WIDE)))


@intrinsic
def address(typing: Any, array: Any) -> Any:
    """Where an array's numbers begin."""

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        return b.ptrtoint(context.make_array(signature.args[0])(context, b, given[0]).data, _I64)

    return types.int64(array), generate


@intrinsic
def keep(typing: Any, array: Any) -> Any:
    """Keep an array up to here: Numba does not know that its address is in use."""
    return types.void(array), lambda context, b, signature, given: context.get_dummy_value()


@intrinsic
def close(typing: Any, bits: Any, city: Any) -> Any:
    """Close a city."""

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        bits, city = given
        place = b.inttoptr(b.add(bits, b.shl(b.lshr(city, _long(6)), _long(3))), _I64.as_pointer())
        bit = b.shl(_long(1), b.and_(city, _long(63)))
        b.store(b.and_(b.load(place), b.not_(bit)), place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fetch(typing: Any, row: Any, n: Any) -> Any:
    """Ask the memory for ``n`` float32 that are wanted soon."""

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        row, n = given
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        how = [ir.Constant(_I32, value) for value in (0, 3, 1)]  # to read, to keep, data

        def body(first: Any) -> None:
            for half in (0, LANES):
                b.call(function, [b.bitcast(_place(b, row, b.add(first, _long(half)), _F32), byte), *how])

        _blocks(b, n, body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def first_largest(typing: Any, row: Any, bits: Any, n: Any) -> Any:
    """The lowest open city with the largest score.

    -1 where a closer look is due: when nothing above ``FLOOR`` is open, or a score is not a number.
    """

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        row, bits, n = given
        floor = _all(FLOOR, WIDE)
        best = cgutils.alloca_once_value(b, floor)
        found = cgutils.alloca_once_value(b, _all(0, WIDE, _I32))  # the block of each lane's largest score
        total = cgutils.alloca_once_value(b, _all(0.0, WIDE))

        def look(first: Any) -> None:
            x = b.select(_opened(b, bits, first, WIDE), _load(b, row, first, WIDE), floor)
            above = b.fcmp_ordered(">", x, b.load(best))
            b.store(b.select(above, x, b.load(best)), best)
            b.store(b.select(above, _spread(b, b.trunc(first, _I32), WIDE), b.load(found)), found)
            b.store(b.fadd(b.load(total), x), total)  # not a number if one of them is not

        _blocks(b, n, look)
        top = _reduced(b, b.load(best), lambda x, y: _larger(b, x, y))
        same = b.fcmp_ordered("==", b.load(best), _spread(b, top, WIDE))
        word = b.bitcast(same, ir.IntType(WIDE))
        lane = b.zext(b.cttz(word, ir.Constant(_I1, 0)), _I64)
        block = b.load(b.gep(b.bitcast(found, _I32.as_pointer()), [lane]))
        city = cgutils.alloca_once_value(b, b.add(b.zext(block, _I64), lane))
        several = b.icmp_unsigned(">", b.ctpop(word), ir.Constant(word.type, 1))
        with b.if_then(several, likely=False):
            lanes = ir.Constant(ir.VectorType(_I32, WIDE), list(range(WIDE)))
            places = b.select(same, b.add(b.load(found), lanes), _all(2**31 - 1, WIDE, _I32))
            lowest = _reduced(b, places, lambda x, y: b.select(b.icmp_signed("<", x, y), x, y))
            b.store(b.zext(lowest, _I64), city)
        clear = b.fcmp_ordered(">", top, ir.Constant(_F32, float(np.float32(FLOOR))))
        odd = b.load(total)
        clear = b.and_(clear, b.not_(_any(b, b.fcmp_unordered("uno", odd, odd))))
        return b.select(clear, b.load(city), _long(-1))

    return types.int64(types.int64, types.int64, types.int64), generate


def _weights(b: Any, scores: Any, tops: Any, shift: int) -> Any:
    """``exp(x) * 2**shift`` for x the scores minus ``tops``, at least ``LEAST`` and at most 0."""
    count = scores.type.count

    def constant(value: float) -> Any:
        return _all(value, count)

    x = b.fsub(_larger(b, scores, constant(FLOOR)), tops)
    x = _larger(b, x, constant(LEAST))
    x = b.select(b.fcmp_ordered("<", x, constant(0.0)), x, constant(0.0))
    magic = constant(1.5 * 2.0**23)  # adding it rounds: whole numbers are in the lowest bits
    rounded = _fused(b, x, constant(math.log2(math.e)), magic)
    rest = _fused(b, b.fsub(rounded, magic), constant(-math.log(2.0)), x)
    power = constant(_POLYNOMIAL[-1])
    for coefficient in reversed(_POLYNOMIAL[:-1]):
        power = _fused(b, power, rest, constant(coefficient))
    ints = ir.VectorType(_I32, count)
    exponent = b.shl(b.bitcast(rounded, ints), _all(23, count, _I32))
    exponent = b.add(exponent, _all(shift << 23, count, _I32))
    return b.bitcast(b.add(b.bitcast(power, ints), exponent), scores.type)


@intrinsic
def exponentials(typing: Any, row: Any, top: Any, n: Any, out: Any) -> Any:
    """Weights ``exp(score - top) * 2**SHIFT`` to ``out``; whether a score is not a number.

    Scores below ``FLOOR`` count as that; differences are at least ``LEAST`` and at most 0.
    """

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        row, top, n, out = given
        tops = _spread(b, top, WIDE)
        odd = cgutils.alloca_once_value(b, _all(0, WIDE, _I1))

        def body(first: Any) -> None:
            x = _load(b, row, first, WIDE)
            b.store(b.or_(b.load(odd), b.fcmp_unordered("uno", x, x)), odd)
            _store(b, _weights(b, x, tops, SHIFT), out, first)

        _blocks(b, n, body)
        return _any(b, b.load(odd))

    return types.boolean(types.int64, types.float32, types.int64, types.int64), generate


@intrinsic
def open_sum(typing: Any, row: Any, bits: Any, n: Any, top: Any) -> Any:
    """The sum of ``exp(score - top)`` over the open cities, where ``top`` is the largest open score."""

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        row, bits, n, top = given
        tops = _spread(b, top, WIDE)
        total = cgutils.alloca_once_value(b, _all(0.0, WIDE))

        def body(first: Any) -> None:
            weights = _weights(b, _load(b, row, first, WIDE), tops, SHIFT)
            weights = b.select(_opened(b, bits, first, WIDE), weights, _all(0.0, WIDE))
            b.store(b.fadd(b.load(total), weights), total)

        _blocks(b, n, body)
        whole = b.fpext(_reduced(b, b.load(total), b.fadd), _F64)
        return b.fmul(whole, ir.Constant(_F64, 2.0**-SHIFT))

    return types.float64(types.int64, types.int64, types.int64, types.float32), generate


def _moved(b: Any, x: Any, distance: int) -> Any:
    """A vector's elements moved up, with zeros below them."""
    count = x.type.count
    order = [count + k - distance if k >= distance else 0 for k in range(count)]
    return b.shuffle_vector(_all(0.0, count), x, ir.Constant(ir.VectorType(_I32, count), order))


@intrinsic
def running_sums(typing: Any, weights: Any, bits: Any, n: Any, sums: Any) -> Any:
    """The sum of the open weights, and what ``passed`` needs.

    Lane ``l`` holds the cities ``l``, ``l + LANES`` and so on. ``sums`` begins with ``LANES``
    zeros; behind them come the sums up to each lane, then, from ``HEAD``, those in each lane up to each city.
    """

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        weights, bits, n, sums = given
        zero = _all(0.0, LANES)
        running = cgutils.alloca_once_value(b, zero)

        def body(first: Any) -> None:
            for half in (0, LANES):
                at = b.add(first, _long(half))
                w = b.select(_opened(b, bits, at, LANES), _load(b, weights, at, LANES), zero)
                now = b.fadd(b.load(running), w)
                b.store(now, running)
                _store(b, now, sums, b.add(at, _long(HEAD)))

        _blocks(b, n, body)
        prefix = b.load(running)
        for distance in (1, 2, 4, 8):
            prefix = b.fadd(prefix, _moved(b, prefix, distance))
        _store(b, prefix, sums, _long(LANES))
        return b.extract_element(prefix, ir.Constant(_I32, LANES - 1))

    return types.float32(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def passed(typing: Any, sums: Any, n: Any, target: Any) -> Any:
    """The city where the sum over the lanes, one after the other, passes ``target``.

    No branch depends on the weights: what lies below the target is counted. A city that is found has a
    positive weight. Rounding may leave the target above all cities of a lane: then it is ``n`` or more.
    """

    def generate(context: Any, b: Any, signature: Any, given: Any) -> Any:
        sums, n, target = given
        prefix = _load(b, sums, _long(LANES), LANES)
        below = b.fcmp_ordered("<=", prefix, _spread(b, target, LANES))
        lane = b.zext(b.ctpop(b.bitcast(below, ir.IntType(LANES))), _I64)
        last = _long(LANES - 1)
        lane = b.select(b.icmp_unsigned("<", lane, last), lane, last)
        before = b.load(_place(b, sums, b.add(lane, last), _F32))
        # Sums up to lanes that were rounded on different ways may fall by a bit.
        rest = _larger(b, b.fsub(target, before), ir.Constant(_F32, 0.0))
        found = cgutils.alloca_once_value(b, lane)
        column = b.add(lane, _long(HEAD))

        def body(first: Any) -> None:
            for half in (0, LANES):
                at = b.add(column, b.add(first, _long(half)))
                less = b.fcmp_ordered("<=", b.load(_place(b, sums, at, _F32)), rest)
                b.store(b.add(b.load(found), b.shl(b.zext(less, _I64), _long(4))), found)

        _blocks(b, n, body)
        return b.load(found)

    return types.int64(types.int64, types.int64, types.float32), generate
