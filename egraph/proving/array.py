"""Tensors of symbols, on which numpy code runs as it is: of each element, the expression that it is.

They take numpy's functions by its protocols (NEP 13, NEP 18), so that what a term means is written once, for arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from types import EllipsisType, MappingProxyType
from typing import Any, NoReturn

import numpy as np

from ..terms.dtypes import BOOL, CODES, FLOAT64, INT64
from .path import Condition, Impossible, Path, Size, Unproved
from .polynomial import Polynomial, constant, symbol
from .value import Value, applied, integer, number

Index = tuple[Polynomial, ...]
#: Element types by numpy's letter for their kind.
KINDS: Mapping[str, tuple[int, ...]] = MappingProxyType({
    "f": (1, 10, 11, 16), "i": (3, 5, 6, 7), "u": (2, 4, 12, 13), "b": (9,), "S": (8,), "c": (14, 15),
})  # fmt: skip
_TRUTHS = (
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_not",
    "isnan", "isfinite",
)  # fmt: skip


class ElementType:
    """The element type of a tensor of symbols: an ONNX number that may not be known."""

    __hash__ = None  # type: ignore[assignment]  # equality is a decision

    def __init__(self, code: Size) -> None:
        self.code = code

    @property
    def kind(self) -> str:
        """Numpy's letter, one path for each."""
        for letter, codes in KINDS.items():
            if of_kind(self.code, codes):
                return letter
        raise Impossible(f"no element type has the number {self.code}")

    def __eq__(self, other: object) -> Any:
        theirs = other.code if isinstance(other, ElementType) else CODES[np.dtype(other).name]  # type: ignore[call-overload]
        return self.code == theirs

    def __ne__(self, other: object) -> Any:
        return ~(self == other)


def of_kind(code: Size, codes: Iterable[int]) -> bool:
    """Whether a type is one of these, which is one decision."""
    return code.path.is_one_of(code.value, tuple(codes))


@dataclass(frozen=True, slots=True)
class Real:
    """A number that may not be known: an attribute."""

    path: Path
    value: Value

    def _with(self, name: str, other: Any, swap: bool = False) -> Any:
        if isinstance(other, SymbolicArray):
            return NotImplemented
        theirs = other.value if isinstance(other, Real) else number(float(other))
        return Real(self.path, applied(name, *((theirs, self.value) if swap else (self.value, theirs))))

    def __add__(self, other: Any) -> Any:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Any:
        return self._with("subtract", other)

    def __mul__(self, other: Any) -> Any:
        return self._with("multiply", other)

    def __truediv__(self, other: Any) -> Any:
        return self._with("divide", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with("divide", other, swap=True)

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        return bool(Condition(self.path, "opaque", ("nonzero", self.value)))

    def __repr__(self) -> str:
        return str(self.value)


class SymbolicArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor by its sizes, its element type and what stands at an index. `flat` is the same by its place in order."""

    __hash__ = None  # type: ignore[assignment]  # equality is one tensor of truths

    def __init__(
        self, path: Path, shape: Sequence[Any], at: Callable[[Index], Value], code: Size | None,
        flat: Callable[[Polynomial], Value] | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self._shape = tuple(s if isinstance(s, Size) else path.number(int(s)) for s in shape)
        self.at, self.code, self._flat = at, code, flat
        self.largest: Size | None = None  # of indices that are known to grow

    @property
    def shape(self) -> tuple[Size, ...]:
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def of_rank(self, rank: int) -> bool:
        """Whether it has so many axes, where no other number makes sense."""
        return self.ndim == rank

    @property
    def size(self) -> Size:
        return reduce(operator.mul, self.shape, self.path.number(1))

    @property
    def dtype(self) -> ElementType:
        if self.code is None:
            raise Unproved("a number has no element type")
        return ElementType(self.code)

    @property
    def sizes(self) -> tuple[Polynomial, ...]:
        return tuple(self.path.normal(s.value) for s in self.shape)

    def made(self, shape: Sequence[Any], at: Callable[[Index], Value], code: Size | None = None) -> SymbolicArray:
        """Another tensor, of the same element type unless one is given."""
        return SymbolicArray(self.path, shape, at, self.code if code is None else code)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if method != "__call__" or more:
            raise Unproved(f"numpy's {ufunc.__name__}.{method} is not known on symbols")
        arrays = [as_array(self.path, x) for x in inputs]
        if ufunc is np.matmul:
            return product(*arrays)
        return elementwise(ufunc.__name__, *arrays)

    def __array_function__(self, f: Any, types: Any, args: Any, kwargs: Any) -> Any:
        known = _FUNCTIONS.get(f.__name__)
        if known is None:
            raise Unproved(f"numpy's {f.__name__} is not known on symbols")
        return known(*args, **kwargs)

    # -------------------------------------------------------------------------------------------------- methods

    def astype(self, to: Any) -> SymbolicArray:
        return self.of_type(to.code if isinstance(to, ElementType) else self.path.number(CODES[np.dtype(to).name]))

    def of_type(self, code: Size) -> SymbolicArray:
        """Cast to the element type of that ONNX number."""
        if self.code is None or self.path.same(code.value, self.code.value):
            return self.made(self.shape, self.at, code)
        before = self.code

        def at(index: Index) -> Value:
            return Value("cast", self.path.normal(code.value), self.path.normal(before.value), self.at(index))

        return self.made(self.shape, at, code)

    def reshape(self, *shape: Any) -> SymbolicArray:
        sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
        return reshaped(self, sizes)

    def transpose(self, *axes: Any) -> SymbolicArray:
        return transposed(self, axes[0] if len(axes) == 1 and isinstance(axes[0], list | tuple) else axes)

    def max(self, axis: Any = None, keepdims: bool = False) -> SymbolicArray:
        return reduced("max", self, axis, keepdims)

    def sum(self, axis: Any = None, keepdims: bool = False) -> SymbolicArray:
        return reduced("sum", self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> SymbolicArray:
        return reduced("mean", self, axis, keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> SymbolicArray:
        return reduced("all", self, axis, keepdims)

    def __getitem__(self, key: Any) -> SymbolicArray:
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(isinstance(k, SymbolicArray) for k in keys):
            return take(self, keys[0], axis=0) if len(keys) == 1 else _unknown("an index of several tensors")
        given = sum(k is not None and not isinstance(k, EllipsisType) for k in keys)
        if not any(isinstance(k, EllipsisType) for k in keys):
            keys.append(...)
        place = next(i for i, k in enumerate(keys) if isinstance(k, EllipsisType))
        keys[place : place + 1] = [slice(None)] * (self.ndim - given)
        found, axis = self, 0
        for k in keys:
            if k is None:
                found = expand_dims(found, axis)
            elif isinstance(k, slice):
                found = sliced(found, axis, k)
            else:
                found = take(found, k, axis)
                continue
            axis += 1
        return found

    def __len__(self) -> int:
        return operator.index(self.shape[0])

    # --------------------------------------------------------------------------------------------- in order

    def in_order(self, place: Polynomial) -> Value:
        """What stands at a place of all elements in order."""
        if self._flat is not None:
            return self._flat(place)
        return self.at(apart(self.path, place, self.sizes))

    def __bool__(self) -> bool:
        raise Unproved("a tensor is asked for its truth")


def _unknown(what: str) -> NoReturn:
    raise Unproved(f"{what} is not known on symbols")


def as_array(path: Path, x: Any) -> SymbolicArray:
    """An operand as a tensor of symbols; one that is a number has no element type of its own."""
    if isinstance(x, SymbolicArray):
        return x
    if isinstance(x, Size):
        return SymbolicArray(path, (), lambda index: integer(path.normal(x.value)), None)
    if isinstance(x, Real):
        return SymbolicArray(path, (), lambda index: x.value, None)
    if isinstance(x, bool | int | float):
        return SymbolicArray(path, (), lambda index: number(x), None)
    known = np.asarray(x)
    if known.ndim == 0 and known.dtype != object:
        return SymbolicArray(path, (), lambda index: number(known.item()), path.number(CODES[known.dtype.name]))
    raise Unproved(f"{type(x).__name__} is no operand of symbols")


def one_type(arrays: Sequence[SymbolicArray]) -> Size | None:
    """The element type of what is computed of several."""
    codes = [a.code for a in arrays if a.code is not None]
    if not codes:
        return None
    path, different = arrays[0].path, [c for c in codes if not codes[0].path.same(c.value, codes[0].value)]
    if not different:
        return codes[0]
    if any(path.normal(c.value).number == FLOAT64 for c in codes):
        return path.number(FLOAT64)
    key = tuple(sorted({path.normal(c.value) for c in codes}, key=str))
    return Size(path, path.named(("promoted", key), symbol))


def broadcast(arrays: Sequence[SymbolicArray]) -> tuple[Size, ...]:
    """The sizes of what is computed of several."""
    path, shape = arrays[0].path, list[Size]()
    for k in range(max(a.ndim for a in arrays), 0, -1):
        size = constant(1)
        for a in arrays:
            if a.ndim >= k:
                size = path.joined(size, a.sizes[-k])
        shape.append(Size(path, size))
    return tuple(shape)


def stretched(x: SymbolicArray, shape: Sequence[Size]) -> Callable[[Index], Value]:
    """What stands at an index of x broadcast to a shape."""
    path = x.path

    def at(index: Index) -> Value:
        own = list(zip(index, shape, strict=True))[len(index) - x.ndim :]
        sizes = x.sizes
        return x.at(tuple(path.projected(i, full.value, size) for (i, full), size in zip(own, sizes, strict=True)))

    return at


def elementwise(name: str, *arrays: SymbolicArray) -> SymbolicArray:
    shape = broadcast(arrays)
    parts = [stretched(a, shape) for a in arrays]
    code = arrays[0].path.number(BOOL) if name in _TRUTHS else one_type(arrays)
    return SymbolicArray(arrays[0].path, shape, lambda index: applied(name, *(at(index) for at in parts)), code)


def where(c: Any, x: Any, y: Any) -> SymbolicArray:
    path = next(a.path for a in (c, x, y) if isinstance(a, SymbolicArray))
    arrays = [as_array(path, a) for a in (c, x, y)]
    chosen = elementwise("where", *arrays)
    return chosen.made(chosen.shape, chosen.at, one_type(arrays[1:]))


def _axis(x: SymbolicArray, axis: Any, more: int = 0) -> int:
    """An axis from the front."""
    return x.path.axis(axis, x.ndim + more)


def transposed(x: SymbolicArray, axes: Sequence[Any]) -> SymbolicArray:
    if len(axes) != x.ndim:
        raise Impossible(f"{len(axes)} axes of rank {x.ndim}")
    order: list[int] = []
    for k in axes:
        left = [j for j in range(x.ndim) if j not in order]
        order.append(x.path.among(k, left))
    back = [order.index(k) for k in range(x.ndim)]
    return x.made([x.shape[k] for k in order], lambda index: x.at(tuple(index[k] for k in back)))


def expand_dims(x: SymbolicArray, axis: Any) -> SymbolicArray:
    if isinstance(axis, tuple):
        for k in sorted(_axis(x, a, len(axis)) for a in axis):
            x = expand_dims(x, k)
        return x
    k = _axis(x, axis, 1)
    shape = [*x.shape[:k], 1, *x.shape[k:]]
    return SymbolicArray(x.path, shape, lambda index: x.at((*index[:k], *index[k + 1 :])), x.code, x._flat)


def squeeze(x: SymbolicArray, axis: Any) -> SymbolicArray:
    k = _axis(x, axis)
    if x.shape[k] != 1:
        raise Impossible(f"size {x.shape[k]} is squeezed")
    shape = [*x.shape[:k], *x.shape[k + 1 :]]
    at = lambda index: x.at((*index[:k], constant(0), *index[k:]))  # noqa: E731
    return SymbolicArray(x.path, shape, at, x.code, x._flat)


def sliced(x: SymbolicArray, axis: int, part: slice) -> SymbolicArray:
    size = x.shape[axis]
    if part == slice(None):
        return x
    step: Any = 1 if part.step is None else part.step
    if not (step >= 1):
        return _unknown("a slice backwards")
    start, stop = (_bound(b, default, size) for b, default in ((part.start, 0), (part.stop, size)))
    length = stop - start if isinstance(step, int) and step == 1 else (stop - start + (step - 1)) // step
    if isinstance(length, int):
        length = x.path.number(length)
    if not length >= 1:
        length = x.path.number(0)
    first, by = (x.path.number(0) + n for n in (start, step))

    def at(index: Index) -> Value:
        return x.at((*index[:axis], first.value + index[axis] * by.value, *index[axis + 1 :]))

    return x.made([*x.shape[:axis], length, *x.shape[axis + 1 :]], at)


def _bound(bound: Any, default: Any, size: Size) -> Any:
    """A bound of a slice, from the front and within the axis."""
    if bound is None:
        return default
    if bound < 0:
        bound = size + bound
        return bound if bound >= 0 else 0
    return bound if bound <= size else size


def take(x: SymbolicArray, ids: Any, axis: Any) -> SymbolicArray:
    k = _axis(x, axis)
    size, path = x.shape[k], x.path
    picked = ids if isinstance(ids, SymbolicArray) else as_array(path, ids)
    n = picked.ndim
    if picked.largest is not None and not picked.largest < size:
        raise Impossible(f"index {picked.largest} of size {size}")
    for_all = None if n else _place(picked.at(()), size)  # one place is asked for at once

    def at(index: Index) -> Value:
        place = for_all if for_all is not None else _place(picked.at(index[k : k + n]), size)
        return x.at((*index[:k], place, *index[k + n :]))

    return x.made([*x.shape[:k], *picked.shape, *x.shape[k + 1 :]], at)


def _place(value: Value, size: Size) -> Polynomial:
    """The index that an element of indices is."""
    path = size.path
    if value.kind == "number":
        value = integer(constant(int(value.args[0])))
    if value.kind == "integer":
        place = Size(path, value.args[0])
        if place < 0:
            place = place + size
        if not (place >= 0 and place < size):
            raise Impossible(f"index {place} of size {size}")
        return place.value
    below = path.normal(size.value)
    return path.named(("picked", value, below), lambda name: path.index(name, below))


def concatenate(arrays: Any, axis: Any = 0) -> SymbolicArray:
    parts: list[SymbolicArray] = list(arrays)
    if not parts:
        raise Impossible("nothing is joined")
    first, path = parts[0], parts[0].path
    k = _axis(first, axis)
    for other in parts[1:]:
        if not other.of_rank(first.ndim) or not all(
            other.shape[j] == first.shape[j] for j in range(first.ndim) if j != k
        ):
            raise Impossible("tensors of other sizes are joined")

    def at(index: Index) -> Value:
        place = Size(path, index[k])
        for part in parts[:-1]:
            if place < part.shape[k]:
                return part.at((*index[:k], place.value, *index[k + 1 :]))
            place = place - part.shape[k]
        return parts[-1].at((*index[:k], place.value, *index[k + 1 :]))

    total = reduce(operator.add, (p.shape[k] for p in parts))
    return SymbolicArray(path, [*first.shape[:k], total, *first.shape[k + 1 :]], at, one_type(parts))


def stack(arrays: Any, axis: Any = 0) -> SymbolicArray:
    parts = list(arrays)
    k = _axis(parts[0], axis, 1)
    return concatenate([expand_dims(p, k) for p in parts], k)


def split(x: SymbolicArray, places: Any, axis: Any = 0) -> list[SymbolicArray]:
    k = _axis(x, axis)
    ends = [0, *places, x.shape[k]]
    return [sliced(x, k, slice(a, b)) for a, b in pairwise(ends)]


def repeat(x: SymbolicArray, times: Any, axis: Any) -> SymbolicArray:
    k = _axis(x, axis)
    count = x.path.number(0) + times
    if not count >= 1:
        raise Impossible("nothing is repeated")

    def at(index: Index) -> Value:
        return x.at((*index[:k], x.path.divided(index[k], count.value)[0], *index[k + 1 :]))

    return x.made([*x.shape[:k], x.shape[k] * count, *x.shape[k + 1 :]], at)


def broadcast_to(x: SymbolicArray, shape: Sequence[Any]) -> SymbolicArray:
    sizes = [x.path.number(0) + s for s in shape]
    if len(sizes) < x.ndim:
        raise Impossible("fewer axes than there are")
    for own, full in zip(x.shape[::-1], sizes[::-1], strict=False):
        if own != 1 and own != full:
            raise Impossible(f"size {own} is broadcast to {full}")
    return x.made(sizes, stretched(x, sizes))


def together(path: Path, index: Iterable[Polynomial], sizes: Iterable[Polynomial]) -> Polynomial:
    """The place in order of an index."""
    place = constant(0)
    for i, size in zip(index, sizes, strict=True):
        place = place * size + i
    return path.normal(place)


def apart(path: Path, place: Polynomial, sizes: Sequence[Polynomial]) -> Index:
    """The index at a place in order."""
    index: list[Polynomial] = []
    for size in reversed(sizes[1:]):
        place, rest = path.divided(place, size)
        index.append(rest)
    return (*([place] if sizes else []), *reversed(index))


def reshaped(x: SymbolicArray, sizes: Sequence[Any]) -> SymbolicArray:
    """x in order, of other sizes, of which one may be -1."""
    path, total = x.path, x.size
    shape = [path.number(0) + s for s in sizes]
    left = [i for i, s in enumerate(shape) if path.normal(s.value).number == -1]
    if len(left) > 1:
        raise Impossible("two sizes of -1")
    if left:
        others = reduce(operator.mul, (s for i, s in enumerate(shape) if i not in left), path.number(1))
        rest = path.normal(total.value).over(path.normal(others.value))
        if rest is None:
            key = ("rest", path.normal(total.value), path.normal(others.value))
            rest = path.named(key, lambda name: path.size(name).value)
        shape[left[0]] = Size(path, rest)
    for s in shape:
        if not s >= 1:
            raise Impossible(f"size {s}")
    if reduce(operator.mul, shape, path.number(1)) != total:
        raise Impossible("another number of elements")
    return in_order(x, shape)


def in_order(x: SymbolicArray, shape: Sequence[Size]) -> SymbolicArray:
    """The elements of x in order, of sizes that are as many."""

    def at(index: Index) -> Value:
        return x.in_order(together(x.path, index, (x.path.normal(s.value) for s in shape)))

    return SymbolicArray(x.path, shape, at, x.code, x.in_order)


def product(x: SymbolicArray, y: SymbolicArray) -> SymbolicArray:
    path = x.path
    if not x.ndim or not y.ndim:
        raise Impossible("a product of scalars")
    a, b = (expand_dims(x, 0) if x.ndim == 1 else x), (expand_dims(y, 1) if y.ndim == 1 else y)
    if a.shape[-1] != b.shape[-2]:
        raise Impossible(f"sizes {a.shape[-1]} and {b.shape[-2]} are multiplied")
    n = path.normal(a.shape[-1].value)
    heads = [t.made(t.shape[:-2], t.at) for t in (a, b)]
    batch = broadcast(heads)

    def at(index: Index) -> Value:
        own = [
            tuple(path.projected(i, f.value, s) for i, f, s in zip(index[len(batch) - t.ndim + 2 : len(batch)],
                  batch[len(batch) - t.ndim + 2 :], t.sizes[:-2], strict=True))
            for t in (a, b)
        ]  # fmt: skip
        row, column = index[-2:]
        return summed(path, "sum", n, lambda k: applied(
            "multiply", a.at((*own[0], row, k)), b.at((*own[1], k, column)),
        ))  # fmt: skip

    both = SymbolicArray(path, [*batch, a.shape[-2], b.shape[-1]], at, one_type([x, y]))
    if x.ndim == 1:
        both = squeeze(both, -2)
    return squeeze(both, -1) if y.ndim == 1 else both


def summed(path: Path, kind: str, n: Polynomial, body: Callable[[Polynomial], Value]) -> Value:
    """The sum, or the largest, of what a body gives below n. Its index is named by how many others are inside."""
    n = path.normal(n)
    if n == constant(1):
        return body(constant(0))
    name = path.deeper(kind, n)
    try:
        inner = body(path.index(name, n))
    finally:
        path.shallower()
    return Value(kind, n, name, inner)


def reduced(kind: str, x: SymbolicArray, axis: Any, keepdims: Any) -> SymbolicArray:
    axes = [axis] if not isinstance(axis, tuple | list) else list(axis)
    if axis is None:
        _unknown("a reduction of all axes")
    places = sorted({_axis(x, a) for a in axes})
    if len(places) != len(axes):
        raise Impossible("an axis is reduced twice")
    path = x.path

    def at(index: Index) -> Value:
        full = list(index)
        for k in places:
            full.insert(k, constant(0))

        def over(left: list[int], so_far: list[Polynomial]) -> Value:
            if not left:
                return x.at(tuple(so_far))
            k = left[0]
            return summed(path, "sum" if kind == "mean" else kind, x.sizes[k],
                          lambda i: over(left[1:], [*so_far[:k], i, *so_far[k + 1 :]]))  # fmt: skip

        value = over(places, full)
        if kind == "mean":
            n = reduce(operator.mul, (x.sizes[k] for k in places), constant(1))
            value = applied("divide", value, integer(n))
        return value

    found = x.made([s for k, s in enumerate(x.shape) if k not in places], at)
    return expand_dims(found, tuple(places)) if keepdims else found


def _reduction(kind: str) -> Callable[..., SymbolicArray]:
    def f(x: SymbolicArray, axis: Any = None, dtype: Any = None, keepdims: Any = False) -> SymbolicArray:
        return reduced(kind, x if dtype is None else x.astype(dtype), axis, keepdims)

    return f


def zeros_like(x: SymbolicArray) -> SymbolicArray:
    return x.made(x.shape, lambda index: number(0))


def full_like(x: SymbolicArray, value: Any, shape: Any = None) -> SymbolicArray:
    held = value.value if isinstance(value, Real) else number(value)
    return x.made(x.shape if shape is None else shape, lambda index: held)


def swapaxes(x: SymbolicArray, a: int, b: int) -> SymbolicArray:
    order = list(range(x.ndim))
    i, j = _axis(x, a), _axis(x, b)
    order[i], order[j] = order[j], order[i]
    return transposed(x, order)


def vector(path: Path, values: Sequence[Any]) -> SymbolicArray:
    """The int64 vector of integers."""
    elements = [path.number(0) + v for v in values]

    def at(index: Index) -> Value:
        place = Size(path, index[0])
        for k, element in enumerate(elements[:-1]):
            if place == k:
                return integer(path.normal(element.value))
        return integer(path.normal(elements[-1].value))

    return SymbolicArray(path, [len(elements)], at, path.number(INT64))


def arange(stop: Any, **more: Any) -> SymbolicArray:
    size = stop if isinstance(stop, Size) else _unknown("a range of numbers")
    return SymbolicArray(size.path, [size], lambda index: integer(index[0]), size.path.number(INT64))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "shape": lambda x: x.shape, "ndim": lambda x: x.ndim, "size": lambda x: x.size, "concatenate": concatenate,
    "stack": stack, "expand_dims": expand_dims, "squeeze": squeeze, "transpose": transposed, "swapaxes": swapaxes,
    "take": take, "where": where, "broadcast_to": broadcast_to, "repeat": repeat, "split": split,
    "mean": _reduction("mean"), "sum": _reduction("sum"), "max": _reduction("max"),
    "zeros_like": zeros_like, "full_like": full_like, "arange": arange,
})  # fmt: skip
