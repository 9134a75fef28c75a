"""Symbolic sizes: every simplification against plain integers, and what equations do."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onnx_egraph.lowering.shapes.dims import Dim, Dims

WORLDS = [{"a": a, "b": b, "c": c} for a in (0, 1, 2, 7) for b in (0, 1, 3) for c in (1, 2, 12)]


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_agrees_with_integers(seed: int) -> None:
    rng = random.Random(seed)
    dims = Dims()
    terms: list[tuple[Dim, list[int]]] = [(dims.symbol(name), [world[name] for world in WORLDS]) for name in "abc"]
    terms += [(number, [number] * len(WORLDS)) for number in (0, 1, 2, 3, -1)]
    operations: dict[str, Callable[[int, int], int]] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "max": max,
        "min": min,
        "floordiv": lambda x, y: x // y,
        "truncdiv": lambda x, y: int(x / y),
    }
    for _ in range(40):
        name = rng.choice(list(operations))
        (x, xs), (y, ys) = rng.choice(terms), rng.choice(terms)
        if name == "floordiv" and min(ys) <= 0:
            continue
        if name == "truncdiv" and not (isinstance(y, int) and y > 0):
            continue
        numbers = [operations[name](p, q) for p, q in zip(xs, ys, strict=True)]
        result: Dim = getattr(dims, name)(x, y)
        assert [dims.evaluate(result, world) for world in WORLDS] == numbers, (seed, name, x, y, result)
        if dims.nonnegative(result):
            assert min(numbers) >= 0, (seed, result)
        if (least := dims.least(result)) is not None:
            assert min(numbers) >= least, (seed, result)
        if dims.at_least(x, y):
            assert all(p >= q for p, q in zip(xs, ys, strict=True)), (seed, x, y)
        if dims.differ(x, y):
            assert all(p != q for p, q in zip(xs, ys, strict=True)), (seed, x, y)
        if max(map(abs, numbers)) < 2**40:
            terms.append((result, numbers))


def test_spelling_is_canonical() -> None:
    dims = Dims()
    a, b = dims.symbol("a"), dims.symbol("b")
    assert dims.mul(dims.add(a, b), dims.add(b, a)) == "a*a + 2*a*b + b*b"
    assert dims.sub(dims.add(a, b), a) == "b"
    assert dims.floordiv(dims.mul(6, a, b), dims.mul(4, b)) == "floordiv(3*a, 2)"
    assert dims.floordiv(dims.add(dims.mul(2, a), 3), 2) == "a + 1"
    assert dims.max(0, dims.sub(a, 1)) == "max(0, a - 1)"
    assert dims.max(a, dims.add(a, b), 0) == "a + b"


def test_a_quotient_of_a_quotient_is_one_quotient() -> None:
    dims = Dims()
    t = dims.symbol("t")
    conv = dims.add(dims.floordiv(dims.sub(t, 127), 64), 1)
    conv = dims.add(dims.floordiv(dims.sub(conv, 7), 3), 1)
    conv = dims.add(dims.floordiv(dims.sub(conv, 3), 2), 1)
    assert conv == dims.sub(dims.floordiv(dims.sub(t, 127), 384), 1)
    assert dims.floordiv(dims.floordiv(t, 5), 2) == "floordiv(t, 10)"
    assert dims.floordiv(dims.mul(2, dims.floordiv(t, 5)), 3) == "floordiv(2*floordiv(t, 5), 3)"


def test_a_length_bounds_the_size_it_is_computed_from() -> None:
    dims = Dims()
    t, u = dims.symbol("t"), dims.symbol("u")
    below = dims.sub(t, 127)
    quotient = dims.truncdiv(below, 384)
    assert not dims.nonnegative(below)
    assert dims.evaluate(quotient, {"t": 0}) == 0  # rounded down it is -1
    dims.mark_length(dims.add(dims.floordiv(below, 64), 1))
    assert dims.nonnegative(below)
    assert not dims.nonnegative(dims.sub(below, 1))
    assert dims.resolve(quotient) == dims.floordiv(below, 384)
    assert dims.max(0, dims.floordiv(below, 64)) == dims.floordiv(below, 64)
    # nothing is said of another size, nor of a product's factors
    assert not dims.nonnegative(dims.sub(u, 1))
    dims.mark_length(dims.sub(dims.mul(t, u), 3))
    assert not dims.nonnegative(dims.sub(u, 1))


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_wherever_the_length_is_one(seed: int) -> None:
    """Of a size at random, and of others computed from the same symbol."""
    rng = random.Random(seed)
    dims = Dims()
    t = dims.symbol("t")

    def drawn() -> Dim:
        size: Dim = t
        for _ in range(rng.randint(1, 4)):
            number = rng.randint(1, 6)
            step = rng.choice([dims.sub, dims.add, dims.floordiv, dims.floordiv, dims.truncdiv, dims.max, dims.mul])
            size = step(size, number)
        return size

    length, others = drawn(), [drawn() for _ in range(20)]
    dims.mark_length(length)
    for k in range(60):
        if dims.evaluate(length, {"t": k}) < 1:
            continue
        for size in others:
            number = dims.evaluate(size, {"t": k})
            assert dims.evaluate(dims.resolve(size), {"t": k}) == number, (length, size, k)
            assert not dims.nonnegative(size) or number >= 0, (length, size, k)
            least = dims.least(size)
            assert least is None or least <= number, (length, size, k)


def test_broadcast() -> None:
    dims = Dims()
    a, b = dims.symbol("a"), dims.symbol("b")
    assert dims.broadcast(a, 1, a) == "a"
    assert dims.broadcast(a, 4) == 4
    assert dims.broadcast(3, 4) is None
    both = dims.broadcast(b, a)
    assert both == "broadcast(a, b)"
    assert dims.broadcast(both, a) == both
    assert dims.broadcast(dims.min(128, a), a) == "a"
    assert dims.evaluate(both, {"a": 1, "b": 5}) == 5
    with pytest.raises(ValueError, match="does not broadcast"):
        dims.evaluate(both, {"a": 2, "b": 5})
    with pytest.raises(KeyError):
        dims.evaluate(both, {"a": 2})


def test_equations_are_applied_everywhere() -> None:
    dims = Dims()
    batch, own, seq = dims.symbol("batch"), dims.symbol("batch@ids"), dims.symbol("seq")
    both = dims.broadcast(batch, own)
    heads = dims.floordiv(dims.mul(4, own), batch)
    assert both is not None
    dims.equate(dims.mul(2, own), dims.mul(2, batch))
    assert dims.resolve(own) == "batch"
    assert dims.resolve(both) == "batch"
    assert dims.resolve(heads) == 4
    # a*seq == b*seq says nothing of a and b while seq may be 0
    p, q = dims.symbol("p"), dims.symbol("q")
    dims.equate(dims.mul(p, seq), dims.mul(q, seq))
    assert dims.resolve(q) == "q"
    dims.mark_nonzero(seq)
    dims.equate(dims.mul(p, seq), dims.mul(q, seq))
    assert dims.resolve(q) == dims.resolve(p)


def test_a_division_that_an_equation_makes_impossible_has_no_value() -> None:
    dims = Dims()
    a, b = dims.symbol("a"), dims.symbol("b")
    quotient = dims.floordiv(a, b)
    dims.equate(b, 0)
    assert str(dims.resolve(quotient)).startswith("?")
    with pytest.raises(ValueError, match="divides by zero"):
        dims.evaluate(quotient, {"a": 1, "b": 0})


def test_a_multiple_of_a_number_above_one_is_never_one() -> None:
    dims = Dims()
    a, b = dims.symbol("a"), dims.symbol("b")
    four = dims.mul(4, a)
    assert dims.never_one(four)
    assert dims.never_one(dims.add(four, dims.mul(6, b)))
    assert dims.never_one(3)
    for other in (a, dims.mul(a, b), dims.add(four, 1), dims.add(four, dims.mul(3, b)), 1, 0):
        assert not dims.never_one(other)


def test_a_sum_comes_apart_as_it_was_made() -> None:
    dims = Dims()
    a, b, c = (dims.symbol(name) for name in "abc")
    half = dims.floordiv(dims.add(a, b), 2)
    for first, rest in ((a, b), (a, 3), (dims.mul(2, a), b), (a, dims.add(b, c)), (dims.mul(a, b), c), (half, 0)):
        assert dims.parted(dims.add(first, rest)) == (first, rest)
    assert dims.parted(dims.sub(a, 1)) == (a, -1)
    assert dims.parted(4) == (4, 0)
    assert dims.parted(0) == (0, 0)
