"""What the operands of a single operator hold: numbers that it takes, and that make results of the given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...egraph.targets import TensorType, Work
from ...egraph.terms import OPS
from ...egraph.terms.dtypes import CODES
from ..model.operators import indexed

Array = npt.NDArray[Any]
#: Elements that are drawn; larger operands repeat them.
_DRAWN = 1 << 16


class Unfit(Exception):
    """A work that cannot be run alone, and why."""


class NoRoom(Unfit):
    """One that takes more memory than is free at the moment."""


def kind(work: Work) -> str:
    """The operator a file has for it: `domain::Type`, or the type alone in the default domain."""
    return OPS[work.op].forms[-1].name if work.op in OPS and OPS[work.op].forms else work.op


def operand(work: Work, index: int) -> Array:
    """The elements of an operand. Raises Unfit for one of unknown rank, or of a type that there is no making."""
    t = work.ins[index]
    if t.shape is None:
        raise Unfit("the rank of an operand is unknown")
    if t.dtype not in CODES or t.dtype in ("string", "complex64", "complex128"):
        raise Unfit(f"an operand has elements of type {t.dtype}")
    name, position = kind(work), place(work, index)
    called = _FORMS.get(name, ())
    given = _GIVEN.get((name, position)) or _NAMED.get(called[position] if position < len(called) else "")
    known = None if given is None else given(work, index)
    if known is not None:
        return np.asarray(known).astype(_numpy(t)).reshape(t.shape)
    table = indexed(name).get(position)
    if table is not None:
        return _indices(work, t, work.ins[table], name)
    return _drawn(t, attends=work.op in OPS and OPS[work.op].attends)


def place(work: Work, index: int) -> int:
    """The position that an operand of a work has in its node."""
    op = OPS.get(work.op)
    if op is None or not op.forms or len(op.operands) == len(work.ins):
        return index
    tensors = [name for name, sort in op.operands if sort == "T"]
    inputs = op.forms[-1].inputs
    return inputs.index(tensors[index]) if index < len(tensors) and tensors[index] in inputs else index


def _numpy(t: TensorType) -> Any:
    return ir.DataType(CODES[t.dtype]).numpy()


def _drawn(t: TensorType, attends: bool) -> Array:
    """Numbers that any operator takes: floats from 1/4 to 1, integers from 1 to 7; of attention's masks all true.

    A single number is 2, an exponent that models have.
    """
    if t.dtype == "bool":
        block = np.ones(1, bool) if attends else np.arange(_DRAWN) % 3 > 0
    elif np.dtype(_numpy(t)).kind in "iu":
        block = 1 + np.arange(_DRAWN) % 7
    elif t.size == 1:
        block = np.full(1, 2.0)
    else:
        block = np.random.default_rng(0).uniform(0.25, 1.0, _DRAWN)
    array: Array = np.resize(block.astype(_numpy(t)), t.shape or ())
    return array


def _indices(work: Work, t: TensorType, table: TensorType, name: str) -> Array:
    """Places in a table: any of those along an axis, or positions in order of a table of angles."""
    shape, count = table.shape or (1,), t.size
    if name.startswith("Gather"):
        axis = work.attrs.get("axis", 0)
        size = min(shape) if name == "GatherND" else shape[axis if isinstance(axis, int) else 0]
        picked = np.random.default_rng(0).integers(0, max(size, 1), count)
    elif t.shape and len(t.shape) > 1:
        picked = np.arange(count) % t.shape[-1] % shape[0]
    else:
        picked = np.zeros(count, np.int64)
    array: Array = picked.astype(_numpy(t)).reshape(t.shape or ())
    return array


def _sizes(work: Work, index: int) -> Sequence[int] | None:
    return work.outs[0].shape


def _times(work: Work, index: int) -> Sequence[int] | None:
    x, out = work.ins[0].shape, work.outs[0].shape
    return None if x is None or out is None else [b // max(a, 1) for a, b in zip(x, out, strict=True)]


def _along(work: Work) -> tuple[int, int]:
    """Size of an operand and of the result along the axis of the attribute."""
    axis, x, out = work.attrs.get("axis", -1), work.ins[0].shape, work.outs[0].shape
    if not isinstance(axis, int) or x is None or out is None:
        raise Unfit("its axis is unknown")
    return x[axis], out[axis]


def _start(work: Work, index: int) -> Sequence[int]:
    if "axis" not in work.attrs:
        return [0] * work.ins[index].size
    return [0] if _step(work) > 0 else [_along(work)[0]]


def _end(work: Work, index: int) -> Sequence[int]:
    if "axis" not in work.attrs:
        return [(work.outs[0].shape or ())[axis] for axis in _sliced(work)]
    size, wanted = _along(work)
    return [min(size, wanted * _step(work))] if _step(work) > 0 else [-size - 1]


def _step(work: Work) -> int:
    step = work.attrs.get("step", 1)
    return step if isinstance(step, int) else 1


def _sliced(work: Work) -> list[int]:
    """The axes of a Slice that gives none by name: those that change, then others."""
    x, out, count = work.ins[0].shape or (), work.outs[0].shape or (), work.ins[1].size
    if len(work.ins) < 4 or not work.ins[3].dtype:
        return [*range(count)]
    changed = [axis for axis, (a, b) in enumerate(zip(x, out, strict=True)) if a != b]
    return sorted([*changed, *(axis for axis in range(len(x)) if axis not in changed)][:count])


def _reduced(work: Work, index: int) -> Sequence[int]:
    x, out = work.ins[0].shape or (), work.outs[0].shape or ()
    count = work.ins[index].size
    if len(x) != len(out):
        return [*range(len(x) - count, len(x))]
    return [axis for axis, (a, b) in enumerate(zip(x, out, strict=True)) if a != b or len(x) == count][:count]


def _parts(work: Work, index: int) -> Sequence[int]:
    axis = work.attrs.get("axis", 0)
    return [(t.shape or ())[axis if isinstance(axis, int) else 0] for t in work.outs]


def _range(number: int) -> Callable[[Work, int], Sequence[int]]:
    return lambda work, index: [(0, work.outs[0].size, 1)[number]]


def _total(work: Work, index: int) -> Sequence[int]:
    """Keys of attention, old and new."""
    present = work.outs[1].shape if len(work.outs) > 1 else None
    if present is None:
        raise Unfit("the number of keys is unknown")
    return [present[2]] * max(work.ins[index].size, 1)


def _before_total(work: Work, index: int) -> Sequence[int]:
    return [n - 1 for n in _total(work, index)]


def _last_axis(work: Work, index: int) -> Sequence[int]:
    return [len(work.ins[0].shape or ()) - 1]


def _padded(work: Work, index: int) -> Sequence[int]:
    x, out = work.ins[0].shape or (), work.outs[0].shape or ()
    return [*[0] * len(x), *(b - a for a, b in zip(x, out, strict=True))]


#: Operands whose elements an operator's results depend on in size: by operator and position.
_GIVEN: Mapping[tuple[str, int], Callable[[Work, int], Sequence[int] | None]] = MappingProxyType({
    ("Reshape", 1): _sizes, ("Expand", 1): _sizes, ("ConstantOfShape", 0): _sizes, ("Tile", 1): _times,
    ("Slice", 1): _start, ("Slice", 2): _end, ("Slice", 3): lambda work, index: _sliced(work),
    ("Slice", 4): lambda work, index: [1] * work.ins[index].size,
    **{(f"Reduce{name}", 1): _reduced for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare")},
    ("Split", 1): _parts, ("Range", 0): _range(0), ("Range", 1): _range(1), ("Range", 2): _range(2),
    ("TopK", 1): lambda work, index: [_along(work)[1]], ("CumSum", 1): _last_axis, ("Pad", 1): _padded,
    ("Trilu", 1): lambda work, index: [0], ("OneHot", 1): lambda work, index: [_along(work)[1]],
})  # fmt: skip
#: The same of operators that terms are written as, by the operands' names.
_NAMED: Mapping[str, Callable[[Work, int], Sequence[int] | None]] = MappingProxyType({
    "seqlens": _before_total, "total": _total,
})  # fmt: skip
_FORMS: Mapping[str, Sequence[str]] = MappingProxyType({
    form.name: form.inputs for op in OPS.values() if op.role == "fused" for form in op.forms
})  # fmt: skip
