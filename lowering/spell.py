"""How each ONNX operator is spelled as a term: the reading table, one function per operator.

A spelling is a nested tuple `(term name, operand, ...)` whose operands are `ir.Value`s, spellings, lists, numbers or
tuples of integers. It is the normal form: axes counted from the end, targets and bounds resolved through the symbolic
facts, opsets unified. None means "opaque": the node is carried through verbatim. `both` asks for the opaque node to
stay available beside its spelling, where the spelling cannot be printed back as the same single node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from ..egraph.terms import OPS
from ..egraph.terms.dtypes import NAMES
from .model.einsum import product
from .positions import gathered
from .shapes.inference import Shapes, ValueFacts

#: A list has a spelling for each output, or None.
Spelling = tuple[Any, ...] | ir.Value | list[tuple[Any, ...] | None]
_Integer = int  # a method of Read hides the name
_Integers = tuple[int, ...]
_Dims = tuple[int | str, ...]

#: The newest opset whose operators are known here; an operator redefined later is opaque.
NEWEST_OPSET = 24
_FAR = 2**62
#: Elements of an axis, read backwards or repeated, that are taken one by one.
_FEW = range(2, 9)


@dataclass(frozen=True, slots=True)
class Read:
    """A node as the spelling functions see it."""

    node: ir.Node
    opset: int
    shapes: Shapes

    def value(self, i: int) -> ir.Value | None:
        return self.node.inputs[i] if i < len(self.node.inputs) else None

    def x(self, i: int = 0) -> ir.Value:
        v = self.value(i)
        if v is None:
            raise ValueError(f"operand {i} is missing")
        return v

    def facts(self, i: int) -> ValueFacts:
        return self.shapes.of(self.x(i))

    def out(self) -> ValueFacts:
        return self.shapes.of(self.node.outputs[0])

    def dims(self, i: int = 0) -> tuple[int | str, ...] | None:
        return self.facts(i).dims

    def ints(self, i: int) -> tuple[int, ...] | None:
        """The elements of an integer input when all are known numbers."""
        v = self.value(i)
        elems = None if v is None else self.shapes.of(v).elems
        numbers = tuple(e for e in elems or () if isinstance(e, int))
        return numbers if elems is not None and len(numbers) == len(elems) else None

    def int(self, name: str, default: int) -> int:
        return self.node.attributes.get_int(name, default)

    def float(self, name: str, default: float) -> float:
        """As onnxruntime has it, in 32 bits, wherever it comes from: one that is not written equals one that is."""
        return float(np.float32(self.node.attributes.get_float(name, default)))

    def list(self, name: str) -> _Integers | None:
        a = self.node.attributes.get(name)
        return None if a is None else tuple(a.as_ints())

    def axes(self, position: _Integer, name: str = "axes") -> _Integers | None:
        """Axes given as an attribute (old opsets) or as a constant input."""
        return self.list(name) or self.ints(position)

    def present(self, i: _Integer) -> bool:
        return self.value(i) is not None

    def count(self) -> _Integer:
        return len(self.node.inputs)

    def is_bool(self, i: _Integer) -> bool:
        return self.facts(i).dtype == ir.DataType.BOOL

    def string(self, name: str, default: str) -> str:
        return self.node.attributes.get_string(name, default)

    def last_axis(self, name: str, default: _Integer) -> bool:
        """Whether the axis an attribute names is the last one."""
        return _last(self.int(name, default), _rank(self)) == -1

    def takes(self, output: _Integer) -> bool:
        """Whether somebody takes the output at that place."""
        found = self.node.outputs[output : output + 1]
        return any(bool(o.uses()) or o.is_graph_output() for o in found)

    def only_first_output(self) -> bool:
        return not any(map(self.takes, range(1, len(self.node.outputs))))


def _last(axis: int, rank: int | None) -> int | None:
    """An axis counted from the end; None if it is counted from the front of an unknown rank, or there is none."""
    if rank is None:
        return axis if axis < 0 else None
    return axis % rank - rank if -rank <= axis < rank else None


def _lasts(axes: Collection[_Integer], rank: int | None) -> _Integers | None:
    """`_last` of each, in order; None if one has none, or two are the same."""
    ends = [end for a in axes if (end := _last(a, rank)) is not None]
    return tuple(sorted(ends)) if len(set(ends)) == len(axes) else None


def _rank(r: Read, i: int = 0) -> int | None:
    d = r.dims(i)
    return None if d is None else len(d)


def _plain(r: Read) -> Spelling | None:
    """The operator is a term of the same name on the same operands."""
    return None if None in r.node.inputs else (r.node.op_type, *r.node.inputs)


def _matmul(r: Read) -> Spelling | None:
    return None if 1 in (_rank(r, 0), _rank(r, 1)) else _plain(r)  # the laws of the term are those of matrices


def _cast(r: Read) -> Spelling | None:
    to = r.int("to", 0)
    if to == ir.DataType.STRING or to not in NAMES or r.facts(0).dtype in (None, ir.DataType.STRING):
        return None
    return ("Cast", r.x(), to)


def _cast_like(r: Read) -> Spelling | None:
    """To a type that is known; floats of 8 bits, which have a saturation of their own, are no types of terms."""
    to = r.facts(1).dtype
    return None if to is None or to.value not in NAMES or r.facts(0).dtype is None else ("Cast", r.x(), to.value)


def _dropout(r: Read) -> Spelling | None:
    training = r.present(2) and r.ints(2) != (0,)
    return r.x() if not training and r.only_first_output() else None


def _softmax(r: Read) -> Spelling | None:
    axis = _last(r.int("axis", -1 if r.opset >= 13 else 1), _rank(r))
    if axis is None or (r.opset < 13 and axis != -1):
        return None  # before opset 13 Softmax flattens to two dimensions: equal only on the last axis
    return (r.node.op_type, r.x(), axis)


def _reduce(since: int) -> Callable[[Read], Spelling | None]:
    def spell(r: Read) -> Spelling | None:
        if r.opset >= since and r.value(1) is not None and r.ints(1) is None:
            return None
        axes = r.axes(1)
        if not axes:
            return None
        ends = _lasts(axes, _rank(r))
        return None if ends is None else (r.node.op_type, r.x(), ends, int(r.int("keepdims", 1) == 1))

    return spell


def _transpose(r: Read) -> Spelling | None:
    perm, rank = r.list("perm"), _rank(r)
    order = perm if perm is not None else tuple(reversed(range(rank or 0)))
    if (perm is None and rank is None) or sorted(order) != [*range(len(order) if rank is None else rank)]:
        return None
    return r.x() if order == tuple(range(len(order))) else ("Transpose", r.x(), order)


def _reshape(r: Read) -> Spelling | None:
    target = r.ints(1)
    if (known := _to_known_dims(r)) is not None:
        return known
    if r.int("allowzero", 0) == 1 and not all(e == -1 or r.shapes.positive(e) for e in r.facts(1).elems or (0,)):
        return None
    return ("Reshape", r.x(), r.x(1) if target is None else ("Ints", target))


def _to_known_dims(r: Read) -> Spelling | None:
    """A reshape to the output's inferred dims."""
    target = _target(r.dims(), r.out().dims)
    return None if target is None else ("Reshape", r.x(), ("Ints", target))


def _target(dims: _Dims | None, out: _Dims | None) -> _Integers | None:
    """Of a reshape from `dims` to `out`: numbers, 0 for a symbol kept in its place, -1 for one other."""
    if dims is None or out is None:
        return None
    found = [d if isinstance(d, int) and d > 0 else 0 if j < len(dims) and dims[j] == d and isinstance(d, str) else None
             for j, d in enumerate(out)]  # fmt: skip
    if found.count(None) == 1 and isinstance(out[found.index(None)], str):
        found[found.index(None)] = -1
    return None if None in found else tuple(d for d in found if d is not None)


def _ones(r: Read) -> Spelling | None:
    """A reshape that adds or removes axes of size 1, besides making two of the last one, as that."""
    dims, out = r.dims(), r.out().dims
    if dims is None or out is None:
        return None
    spelled: Spelling = r.x()
    if len(out) > len(dims):
        added = _more_ones(out, dims)
        rest = tuple(d for j, d in enumerate(out) if j not in added)
        target = _target(dims, rest)
        if not added or target is None or rest[: len(dims) - 1] != dims[:-1]:
            return None
        spelled = spelled if rest == dims else ("Reshape", spelled, ("Ints", target))
        for j in added:
            spelled = ("Unsqueeze", spelled, j - len(out) + sum(k > j for k in added))
        return spelled
    removed = _more_ones(dims, out)
    if not removed or tuple(d for j, d in enumerate(dims) if j not in removed) != out:
        return None
    for j in reversed(removed):
        spelled = ("Squeeze", spelled, j - len(dims) + sum(k > j for k in removed))
    return spelled


def _more_ones(dims: _Dims, others: _Dims) -> list[_Integer]:
    """The axes of size 1 that `others`, read along, does not have."""
    found, i = [], 0
    for j, d in enumerate(dims):
        if d == 1 and others[i : i + 1] != (1,):
            found.append(j)
        else:
            i += 1
    return found


def _expand(r: Read) -> Spelling | None:
    dims, out = r.dims(), r.out().dims
    if dims is not None and out is not None and len(out) >= len(dims):
        lead = len(out) - len(dims)
        target: list[int] = []
        for j, d in enumerate(out):
            if j >= lead and dims[j - lead] == d:
                target.append(1)
            elif isinstance(d, int):
                target.append(d)
        if len(target) == len(out):
            return r.x() if not lead and set(target) <= {1} else ("Expand", r.x(), ("Ints", tuple(target)))
    return ("Expand", r.x(), r.x(1))


def _tile(r: Read) -> Spelling | None:
    """Repeating axes of size 1 is expanding them; repeating one axis n times is concatenating n copies."""
    dims, times = r.dims(), r.ints(1)
    if dims is None or times is None or len(times) != len(dims) or min(times, default=1) < 1:
        return None
    repeated = [i for i, t in enumerate(times) if t > 1]
    if all(dims[i] == 1 for i in repeated):
        return ("Expand", r.x(), ("Ints", times)) if repeated else r.x()
    if len(repeated) == 1 and times[repeated[0]] in _FEW:
        return ("Concat", [r.x()] * times[repeated[0]], repeated[0] - len(dims))
    return None


def _unsqueeze(r: Read) -> Spelling | None:
    axes = r.axes(1)
    if not axes:
        return None
    rank = _rank(r)
    if rank is None:
        return ("Unsqueeze", r.x(), axes[0]) if len(axes) == 1 and axes[0] < 0 else None
    total, ends = rank + len(axes), _lasts(axes, rank + len(axes))
    if ends is None:
        return None
    spelled: Spelling = r.x()
    for k, a in enumerate(ends):
        spelled = ("Unsqueeze", spelled, a + total - (rank + k + 1))
    return spelled


def _squeeze(r: Read) -> Spelling | None:
    dims, axes = r.dims(), r.axes(1)
    if dims is None:
        return None
    if axes is None:
        if r.value(1) is not None or any(isinstance(d, str) for d in dims):
            return None
        axes = tuple(i for i, d in enumerate(dims) if d == 1)
    ends = _lasts(axes, len(dims))
    if not ends:
        return None  # no axes given: onnxruntime takes all of size 1
    spelled: Spelling = r.x()
    for k, a in enumerate(reversed(ends)):
        spelled = ("Squeeze", spelled, a + k)
    return spelled


def _slice(r: Read) -> Spelling | None:
    dims, starts, ends = r.dims(), r.value(1), r.value(2)
    if starts is None or ends is None:
        return None
    first, last = r.shapes.of(starts).elems, r.shapes.of(ends).elems
    axes, steps = r.ints(3), r.ints(4)
    if (r.value(3) is not None and axes is None) or (r.value(4) is not None and steps is None):
        return None
    if first is None or last is None:
        return None
    axes = axes if axes is not None else tuple(range(len(first)))
    steps = steps if steps is not None else (1,) * len(first)
    if not len(first) == len(last) == len(axes) == len(steps):
        return None
    spelled: Spelling = r.x()
    for k, (a, s, e, t) in enumerate(zip(axes, first, last, steps, strict=True)):
        axis = _last(a, None if dims is None else len(dims))
        if axis is None:
            return None
        size = None if dims is None else dims[axis]
        if t == 1 and s == 0 and (e == size or (isinstance(e, int) and e >= _FAR)):
            continue
        if isinstance(size, int) and isinstance(s, int) and isinstance(e, int) and t >= 1:
            begin = min(max(s + size if s < 0 else s, 0), size)
            end = min(max(e + size if e < 0 else e, begin), size)
            if begin == end:
                return None
            end = begin + (end - begin - 1) // t * t + 1  # one past the last element taken
            if (begin, end, t) != (0, size, 1):
                spelled = ("SliceC", spelled, axis, begin, end, t)
        elif isinstance(size, int) and isinstance(s, int) and isinstance(e, int) and len(range(size)[s:e:t]) in _FEW:
            spelled = ("Concat", [("SliceC", spelled, axis, i, i + 1, 1) for i in range(size)[s:e:t]], axis)
        elif r.facts(1).dtype == ir.DataType.INT64:  # printed with int64 axes
            spelled = ("Slice", spelled, _bound(starts, first, k), _bound(ends, last, k), axis, t)
        else:
            return None
    return spelled


def _bound(bounds: ir.Value, known: Sequence[int | str], k: int) -> Spelling:
    """The bound of one axis."""
    if len(known) == 1:
        return bounds
    bound = known[k]
    return ("Ints", (bound,)) if isinstance(bound, int) else ("SliceC", bounds, -1, k, k + 1, 1)


def _gather(r: Read) -> Spelling | None:
    axis = _last(r.int("axis", 0), _rank(r))
    if axis is None:
        return None
    return _taken(r) or _picked(r, axis) or ("Gather", r.x(), r.x(1), axis)


def _taken(r: Read) -> Spelling | None:
    """A gather of all positions as what it takes."""
    found = gathered(r.node, r.shapes)
    if found is None:
        return None
    source, ones = found
    spelled: Spelling = source
    for k, axis in enumerate(ones):
        spelled = ("Unsqueeze", spelled, axis + len(ones) - k - 1)
    return spelled


def _taken_at_once(r: Read) -> Spelling | None:
    """The same by one reshape."""
    found, out = gathered(r.node, r.shapes), r.out().dims
    if found is None or out is None:
        return None
    source, ones = found
    given = r.shapes.of(source).dims or ()
    sizes = iter(given)
    target = _target(given, tuple(1 if k - len(out) in ones else next(sizes) for k in range(len(out))))
    return None if target is None else ("Reshape", source, ("Ints", target))


def _picked(r: Read, axis: _Integer) -> Spelling | None:
    """What a constant vector of indices takes of an axis of known size: one slice, two that are joined, or two that
    are interleaved.
    """
    dims, places = r.dims(), _places(r, axis)
    if dims is None or places is None:
        return None
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    half = len(places) // 2
    for parts in ([places], runs if len(runs) == 2 else [], [places[:half], places[half:]]):
        slices = [_stepped(r.x(), axis, part, dims[axis]) for part in parts]
        if slices and None not in slices:
            return slices[0] if len(slices) == 1 else ("Concat", slices, axis)
    turns = [_stepped(r.x(), axis, places[k::2], dims[axis]) for k in (0, 1)]
    kept = _kept(r.out().dims)
    if axis != -1 or len(places) % 2 or None in turns or kept is None:
        return None
    return ("Reshape", ("Concat", [("Unsqueeze", s, -1) for s in turns], -1), ("Ints", kept))


def _places(r: Read, axis: _Integer) -> np.ndarray | None:
    """The constant indices from the front that are taken of an axis of known size, if they are a vector."""
    dims, ids = r.dims(), r.x(1)
    tensor, known = None if ids.is_graph_input() else ids.const_value, r.facts(1)
    if tensor is not None and not isinstance(tensor, ir.ExternalTensor) and len(tensor.shape) == 1:
        given = np.asarray(tensor.numpy()).astype(np.int64)
    elif known.dims is not None and len(known.dims) == 1 and (numbers := r.ints(1)) is not None:
        given = np.asarray(numbers, np.int64)
    else:
        return None
    size = None if dims is None else dims[axis]
    if not isinstance(size, int) or not given.size or given.min() < -size or given.max() >= size:
        return None
    return np.where(given < 0, given + size, given)


def _stepped(x: Spelling, axis: _Integer, places: np.ndarray, size: _Integer | str) -> Spelling | None:
    """The slice of x that has these elements of an axis, if they are evenly spaced and rising."""
    steps = {*np.diff(places).tolist()} or {1}
    step = steps.pop()
    if not len(places) or steps or step < 1:
        return None
    start, end = int(places[0]), int(places[-1]) + 1
    return x if (start, end, step) == (0, size, 1) else ("SliceC", x, axis, start, end, step)


def _kept(dims: tuple[_Integer | str, ...] | None) -> _Integers | None:
    """The target of a Reshape to these sizes from others that differ in the last one alone."""
    if not dims or not isinstance(dims[-1], int):
        return None
    return (*(0 if isinstance(d, str) else d for d in dims[:-1]), dims[-1])


def _concat(r: Read) -> Spelling | None:
    axis = _last(r.int("axis", 0), _rank(r))
    if axis is None or None in r.node.inputs:
        return None
    return r.x() if len(r.node.inputs) == 1 else ("Concat", list(r.node.inputs), axis)


def _split(r: Read) -> Spelling | None:
    dims, parts = r.dims(), len(r.node.outputs)
    if dims is None:
        return r.x() if parts == 1 else None
    axis = _last(r.int("axis", 0), len(dims))
    if parts == 1 and axis is not None:
        return r.x()
    size = None if axis is None else dims[axis]
    if axis is None or not isinstance(size, int):
        return None
    sizes = r.list("split") or r.ints(1)
    if sizes is None:
        if r.value(1) is not None:
            return None
        each = -(-size // parts)
        sizes = (*(each,) * (parts - 1), size - each * (parts - 1))
    if len(sizes) != parts or sum(sizes) != size or min(sizes) < 1:
        return None
    return ("Split", r.x(), axis, sizes)


def _shape(r: Read) -> Spelling | None:
    rank = _rank(r)
    if rank is None:
        return None
    start, end, _ = slice(r.int("start", 0), r.int("end", rank)).indices(rank)
    return ("Shape", r.x(), start - rank, end - rank) if start < end else None


def _trilu(r: Read) -> Spelling | None:
    """One that starts at the diagonal."""
    return ("Trilu", r.x(), r.int("upper", 1)) if not r.present(1) or r.ints(1) == (0,) else None


def _einsum(r: Read) -> Spelling | None:
    if len(r.node.inputs) != 2 or None in r.node.inputs:
        return None
    equation = r.node.attributes["equation"].as_string()
    spelled: Spelling | None = product(equation, r.x(), r.x(1), [r.dims(), r.dims(1)])
    return spelled


@dataclass(frozen=True, slots=True)
class Entry:
    spell: Callable[[Read], Spelling | None]
    both: bool = False  # keep the verbatim node as well
    also: Callable[[Read], Spelling | None] | None = None  # another form, beside the normal one


def _table() -> Mapping[tuple[str, str], Entry]:
    own = {
        "MatMul": Entry(_matmul), "Cast": Entry(_cast), "CastLike": Entry(_cast_like),
        "Max": Entry(lambda r: ("Max", r.x(), r.x(1)) if r.count() == 2 else None),
        "Einsum": Entry(_einsum, both=True), "Flatten": Entry(_to_known_dims, both=True, also=_ones),
        "Identity": Entry(lambda r: r.x()), "Dropout": Entry(_dropout), "Softmax": Entry(_softmax),
        "LogSoftmax": Entry(_softmax),
        "ReduceMean": Entry(_reduce(18)), "ReduceSum": Entry(_reduce(13)), "ReduceMax": Entry(_reduce(18)),
        "Transpose": Entry(_transpose), "Reshape": Entry(_reshape, also=_ones),
        "Expand": Entry(_expand), "Tile": Entry(_tile, both=True), "Unsqueeze": Entry(_unsqueeze),
        "Squeeze": Entry(_squeeze), "Slice": Entry(_slice), "Concat": Entry(_concat),
        "Gather": Entry(_gather, also=_taken_at_once), "GatherND": Entry(_taken, also=_taken_at_once, both=True),
        "Split": Entry(_split), "Shape": Entry(_shape), "Trilu": Entry(_trilu),
    }  # fmt: skip
    table: dict[tuple[str, str], Entry] = {("", name): entry for name, entry in own.items()}
    for op in OPS.values():
        for kind, reader in op.reads.items():
            domain, _, op_type = kind.rpartition("::")
            table[domain, op_type] = Entry(reader, both=True)
        if op.role == "operator" and op.name not in own and not (op.attributes or op.reads or op.plain):
            table["", op.name] = Entry(_plain)
    return MappingProxyType(table)


#: (domain, op type) -> how it is read.
SPELLINGS: Mapping[tuple[str, str], Entry] = _table()
