"""What terms mean on symbols: what they do on arrays, as it is written, but where numbers are read out of a tensor or
become one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ..terms import TENSOR, IllFormed, Op
from ..terms.dtypes import BOOL, INT64, NAMES
from .array import (
    KINDS,
    Real,
    SymbolicArray,
    broadcast,
    in_order,
    of_kind,
    sliced,
    stretched,
    vector,
)
from .path import Path, Size, Unproved
from .polynomial import Polynomial, constant
from .value import Value, integer, number


def applied(path: Path, op: Op, args: list[Any]) -> Any:
    """`op` on symbols. Raises IllFormed where it does not take such operands, Unproved where that cannot be told."""
    meaning = MEANINGS[op.symbolic] if op.symbolic else None
    _fit(path, op, args, checked=meaning is None)
    made = _computed(path, op, args, meaning)
    for x in made if isinstance(made, list) else [made]:
        if isinstance(x, SymbolicArray) and any(p.number == 0 for p in x.sizes):
            raise IllFormed(f"{op.name} gives a tensor without elements")
    return made


def _computed(path: Path, op: Op, args: list[Any], meaning: Callable[..., Any] | None) -> Any:
    if meaning is not None:
        return meaning(path, *args)
    if op.numpy is None:
        raise Unproved(f"{op.name} has no numeric meaning")
    try:
        return op.numpy(*args)
    except IndexError as error:
        raise IllFormed(f"{op.name}: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise Unproved(f"{op.name} cannot be computed on symbols: {error}") from error


def _fit(path: Path, op: Op, args: list[Any], checked: bool) -> None:
    """Raises IllFormed for operands that the term's declaration excludes."""
    operands = {name: a for a, (name, _) in zip(args, op.operands, strict=True) if a is not None}
    first, *others = [operands[n] for n in op.same if n in operands] or [None]
    if any(first.dtype != other.dtype for other in others):
        raise IllFormed(f"{op.name} of different element types")
    tensors = [a for a, sort in op.with_sorts(args) if sort == TENSOR and a is not None]
    if op.boolean and tensors[0].code != BOOL:
        raise IllFormed(f"{op.name} of numbers")
    if op.floating and not of_kind(tensors[0].code, KINDS["f"]):
        raise IllFormed(f"{op.name} of integers")
    if checked and op.requires is not None:
        try:
            op.requires(*args)
        except IndexError as error:
            raise IllFormed(str(error)) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise Unproved(f"what {op.name} requires cannot be asked of symbols: {error}") from error


def element(x: SymbolicArray, k: Any) -> Size:
    """An element of an integer vector, or of a scalar."""
    path = x.path
    found = x.at((constant(k),) if x.ndim else ())
    if found.kind == "integer":
        return Size(path, found.args[0])
    if found.kind == "number":
        return path.number(int(found.args[0]))
    p = path.named(("element", found), lambda name: path.integer(name).value)
    path.held[found] = integer(p)
    return Size(path, p)


def _elements(x: SymbolicArray) -> list[Size]:
    if x.ndim != 1:
        raise IllFormed("a vector is wanted")
    return [element(x, k) for k in range(x.path.length(x.shape[0], LONGEST))]


def _reshape(path: Path, x: SymbolicArray, target: SymbolicArray) -> SymbolicArray:
    """A target of 0 copies a size, one of -1 is what remains. Unknown ones give sizes that these and x determine."""
    asked, total = _elements(target), path.normal(x.size.value)
    sizes: list[Polynomial] = []
    for k, size in enumerate(asked):
        p = path.normal(size.value)
        if k >= x.ndim and size == 0:
            raise IllFormed(f"size {k} is copied, and there is none")
        zero = path.known(size == 0)
        if zero:
            p = x.sizes[k]
        elif zero is None:
            p = path.named(("copied", p, x.sizes[k]), lambda name: path.integer(name).value)
        sizes.append(p)
    if all(p.number == -1 or path.at_least_zero(p - constant(1)) for p in sizes):
        return x.reshape([Size(path, p) for p in sizes])
    shape = [
        Size(path, path.named(("reshaped", k, tuple(sizes), total), lambda name: path.size(name).value))
        for k in range(len(sizes))
    ]
    key = ("as many", tuple(sizes), total)
    if path.named(key, lambda name: constant(0)) == constant(0):
        whole = constant(1)
        for s in shape:
            whole = whole * s.value
        path.equate(path.normal(whole - total))
    return in_order(x, [Size(path, s.value) for s in shape])


def _expand(path: Path, x: SymbolicArray, target: SymbolicArray) -> SymbolicArray:
    asked = _elements(target)
    for size in asked:
        if not size >= 1:
            raise IllFormed("a size below 1")
    shape = broadcast([x, SymbolicArray(path, asked, lambda index: number(0), None)])
    return x.made(shape, stretched(x, shape))


def _slice(
    path: Path, x: SymbolicArray, start: SymbolicArray, end: SymbolicArray, axis: Any, step: Any
) -> SymbolicArray:  # fmt: skip
    """Bounds that are not known give a first place and a size that these, the axis and the step determine."""
    if any(bound.ndim != 1 or bound.shape[0] != 1 for bound in (start, end)):
        raise IllFormed("a slice of one axis has bounds of one element")
    k = path.axis(axis, x.ndim)
    size = path.normal(x.shape[k].value)
    key = (element(start, 0).value, element(end, 0).value, (path.number(0) + step).value, size)
    if all(path.normal(p).number is not None for p in key):
        first, last, by = (Size(path, p) for p in key[:3])
        return sliced(x, k, slice(first, last, by))
    length = path.named(("length", *key), lambda name: path.size(name).value)

    def at(index: tuple[Polynomial, ...]) -> Value:
        place = path.named(("place", *key, index[k]), lambda name: path.index(name, size))
        return x.at((*index[:k], place, *index[k + 1 :]))

    return x.made([*x.shape[:k], Size(path, length), *x.shape[k + 1 :]], at)


def _shape(path: Path, x: SymbolicArray, first: Any, last: Any) -> SymbolicArray:
    a, b = first.__index__(), last.__index__()
    return vector(path, x.shape[a : b or None])


def _range(path: Path, start: SymbolicArray, limit: SymbolicArray, step: SymbolicArray) -> SymbolicArray:
    first, end, by = (element(t, 0) for t in (start, limit, step))
    if by != 1:
        raise Unproved("a range of another step than 1")
    length = end - first
    if not length >= 1:
        raise IllFormed("an empty range")
    return SymbolicArray(path, [length], lambda index: integer(path.normal(first.value + index[0])), start.code)


def _cast(path: Path, x: SymbolicArray, to: Any) -> SymbolicArray:
    code = path.number(0) + to
    if not of_kind(code, tuple(NAMES)):
        raise IllFormed("no element type")
    return x.of_type(code)


def _number(path: Path, value: Any, to: Any) -> SymbolicArray:
    held = value.value if isinstance(value, Real) else number(float(value))
    return SymbolicArray(path, (), lambda index: held, path.number(0) + to)


def _vector(path: Path, values: Any) -> SymbolicArray:
    """Of integers, or of one."""
    return vector(path, values if isinstance(values, tuple) else [values])


def _integer(path: Path, value: Any) -> SymbolicArray:
    n = (path.number(0) + value).value
    return SymbolicArray(path, (), lambda index: integer(n), path.number(INT64))


def _scaled(path: Path, x: SymbolicArray, by: Any) -> SymbolicArray:
    """In the type of x: that the product is wide and then cast is rounding."""
    scaled: SymbolicArray = x * by
    return scaled


#: Numbers of a vector up to which one is taken apart.
LONGEST = 6
#: By the names that declarations give: where numbers are read out of tensors, or become tensors, or an element type is
#: an attribute.
MEANINGS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "reshape": _reshape, "expand": _expand, "slice": _slice, "shape": _shape, "range": _range, "cast": _cast,
    "number": _number, "vector": _vector, "integer": _integer, "scaled": _scaled,
})  # fmt: skip
