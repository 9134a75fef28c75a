"""What each operator does to the dtype, the sizes and the small integer contents of its inputs.

Only operators whose meaning this package relies on are here; `library` covers the others. Sizes follow the
ONNX operator specifications (onnx/docs/Operators.md) and what onnxruntime does where those leave a choice. A
function returns one `Tensor` per output, or None where the node is outside what it covers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .dims import Dim, Dims
from .equations import Equations

Contents: TypeAlias = npt.NDArray[np.object_]

# Contents of larger tensors are data, not shapes.
MAX_ELEMENTS = 64
# A slice bound this large means "to the end": no axis is that long.
FAR = 2**31 - 1
INTEGERS = frozenset(kind for kind in ir.DataType if kind.is_integer() and kind.bitwidth >= 8)
DISCRETE = INTEGERS | {ir.DataType.BOOL}
# Exporters pass sizes through float32 and float64; whole numbers up to this one are exact in both.
WHOLE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
MAX_WHOLE = 2**24
# A size that a number or other sizes are multiplied with; by itself one is exact in each of these types.
LARGE: Mapping[ir.DataType, int] = {
    ir.DataType.INT64: 2**15,
    ir.DataType.INT32: 2**20,
    ir.DataType.FLOAT: 2**16,
    ir.DataType.DOUBLE: 2**16,
}


@dataclass(slots=True)
class Known:
    """What is known of a value: dtype, sizes (None: rank unknown), contents (an object array of `Dim`, which
    a float tensor has only where all its elements are whole numbers).
    """

    dtype: ir.DataType | None = None
    dims: tuple[Dim, ...] | None = None
    contents: Contents | None = None


@dataclass(slots=True)
class Operation:
    """One node as an operator function sees it. ``proves`` collects what its execution says of sizes."""

    node: ir.Node
    inputs: list[Known | None]
    opset: int
    dims: Dims
    proves: Equations = field(default_factory=Equations)

    def __getitem__(self, index: int) -> Known:
        found = self.get(index)
        return Known() if found is None else found

    def get(self, index: int) -> Known | None:
        """Input ``index``, None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def has(self, name: str) -> bool:
        return name in self.node.attributes

    def attribute(self, name: str, default: int) -> int:
        return self.node.attributes[name].as_int() if self.has(name) else default

    def ints_or_input(self, name: str, index: int) -> tuple[Dim, ...] | None:
        """A list kept in an attribute by older opsets, in an input by newer ones. None: absent or unknown."""
        if self.has(name):
            return tuple(self.node.attributes[name].as_ints())
        given = self.get(index)
        return None if given is None or given.contents is None else tuple(given.contents.ravel())

    def axes(self, name: str, index: int, rank: int) -> tuple[int, ...] | None:
        """Like `ints_or_input`, for axes: non-negative, None if one of them is unknown or out of range."""
        given = self.ints_or_input(name, index)
        if given is None or not all(isinstance(axis, int) and -rank <= axis < rank for axis in given):
            return None
        return tuple(int(axis) % rank for axis in given)

    def unknown(self, rank: int) -> tuple[Dim, ...]:
        """``rank`` sizes nothing is known of."""
        return tuple(self.dims.fresh() for _ in range(rank))

    def of_length(self, index: int) -> tuple[Dim, ...] | None:
        """Unknown sizes, as many as input ``index`` (a list of sizes) has elements."""
        length = (self[index].dims or (None,))[0]
        return self.unknown(length) if isinstance(length, int) and length <= MAX_ELEMENTS else None


Outputs: TypeAlias = list[Known] | None
Function: TypeAlias = Callable[[Operation], Outputs]


def pack(elements: Sequence[Dim], shape: Sequence[Dim]) -> Contents:
    """An object array of ``shape`` (all ints) holding ``elements``."""
    array = np.empty(len(elements), dtype=object)
    for place, element in enumerate(elements):
        array[place] = element
    return array.reshape([int(dim) for dim in shape])


def contents_of(tensor: ir.TensorProtocol) -> Contents | None:
    """The whole numbers in a small constant that is already in memory."""
    if tensor.size > MAX_ELEMENTS or isinstance(tensor, ir.ExternalTensor):
        return None
    if tensor.dtype in DISCRETE:
        values = tensor.numpy()
    elif tensor.dtype in WHOLE and tensor.size <= 1:
        values = tensor.numpy()
        if not all(abs(element) <= MAX_WHOLE and element == int(element) for element in values.ravel()):
            return None
    else:
        return None
    return pack([int(element) for element in values.ravel()], values.shape)


def fits(value: Dim, dtype: ir.DataType, dims: Dims) -> bool:
    """Whether arithmetic that gave ``value`` is exact in ``dtype``. Sizes are taken to be below `LARGE` of that type:
    larger ones come with few factors, or no tensor could be allocated. Nothing is taken of other integers.
    """
    if isinstance(value, str):
        if dtype not in LARGE or not dims.is_moderate(value):
            return False
        if (dtype != ir.DataType.INT64 or dims.is_signed(value)) and dims.degree(value) > 1:
            return False
        return dims.largest(value, LARGE[dtype]) <= (MAX_WHOLE if dtype in WHOLE else int(np.iinfo(dtype.numpy()).max))
    if dtype in WHOLE:
        return abs(value) <= MAX_WHOLE
    if dtype == ir.DataType.BOOL:
        return value in (0, 1)
    limits = np.iinfo(dtype.numpy())
    return bool(limits.min <= value <= limits.max)


def shared(node: Operation, shapes: Sequence[tuple[Dim, ...] | None]) -> tuple[Dim, ...] | None:
    """The shape these broadcast to, None if one is unknown or they do not."""
    dims = node.dims
    sizes: list[Dim] = []
    known = [shape[::-1] for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    for column in itertools.zip_longest(*known, fillvalue=1):
        size = dims.broadcast(*column)
        if size is None:
            return None
        if isinstance(size, int):
            node.proves.narrowed += [(each, size) for each in column if each != size and each != 1]
        node.proves.equal += [(each, size) for each in column if dims.is_cut(each, size)]
        whole = [each for each in column if dims.never_one(each)]  # such axes never stretch
        node.proves.equal += [(each, whole[0]) for each in whole if each != whole[0]]
        sizes.append(size)
    return tuple(sizes[::-1])


def elementwise(
    node: Operation, dtype: ir.DataType | None, compute: Callable[..., Dim | None] | None, *, selects: bool = False
) -> Outputs:
    """Broadcast all inputs; ``compute`` gives one element, None where it is unknown. ``selects``: every
    result is one of the operands, so that it cannot wrap around.
    """
    inputs = [Known() if given is None else given for given in node.inputs]
    if node.opset < 7:
        return [Known(dtype, inputs[0].dims)]
    shape = shared(node, [given.dims for given in inputs])
    if shape is None or compute is None or dtype is None or not (dtype in DISCRETE or dtype in WHOLE):
        return [Known(dtype, shape)]
    arrays = [given.contents for given in inputs if given.contents is not None]
    if len(arrays) < len(inputs) or math.prod(int(size) for size in shape) > MAX_ELEMENTS:
        return [Known(dtype, shape)]
    elements: list[Dim] = []
    for operands in zip(*(array.ravel() for array in np.broadcast_arrays(*arrays)), strict=True):
        value = compute(*operands)
        if value is None or not (selects or value in operands or fits(value, dtype, node.dims)):
            if dtype in WHOLE:
                return [Known(dtype, shape)]
            # keyed by what it is computed from: the same computation elsewhere gives the same symbol
            value = node.dims.opaque(node.node.op_type, dtype, *operands)
        elements.append(value)
    return [Known(dtype, shape, pack(elements, shape))]


def first_dtype(node: Operation) -> ir.DataType | None:
    return next((given.dtype for given in node.inputs if given is not None and given.dtype is not None), None)


# ---- element arithmetic


def truncated(node: Operation) -> Callable[[Dim, Dim], Dim | None]:
    def divide(a: Dim, b: Dim) -> Dim | None:
        if isinstance(a, int) and isinstance(b, int):
            return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if isinstance(b, int) and b > 0:
            return node.dims.truncdiv(a, b)
        return node.dims.floordiv(a, b) if _divides(node.dims, a, b) else None

    return divide


def _divides(dims: Dims, a: Dim, b: Dim) -> bool:
    return b != 0 and dims.nonnegative(a) and dims.nonnegative(b)


def remainder(node: Operation) -> Callable[[Dim, Dim], Dim | None]:
    c_like = node.attribute("fmod", 0) == 1

    def modulo(a: Dim, b: Dim) -> Dim | None:
        if isinstance(a, int) and isinstance(b, int):
            return None if b == 0 else int(math.fmod(a, b)) if c_like and abs(a) < 2**53 else a % b
        return node.dims.sub(a, node.dims.mul(b, node.dims.floordiv(a, b))) if _divides(node.dims, a, b) else None

    return modulo


def arithmetic(node: Operation) -> Outputs:
    dims = node.dims
    compute: dict[str, Callable[..., Dim | None]] = {
        "Add": dims.add, "Sum": dims.add, "Sub": dims.sub, "Mul": dims.mul, "Div": truncated(node),
        "Mod": remainder(node), "Max": dims.max, "Min": dims.min,
    }  # fmt: skip
    kind = node.node.op_type
    dtype = node[0].dtype if kind == "Pow" else first_dtype(node)
    exact = kind != "Div" or dtype in DISCRETE
    return elementwise(node, dtype, compute.get(kind) if exact else None, selects=kind in ("Max", "Min"))


def comparison(test: Callable[[Dims, Dim, Dim], Dim | None]) -> Function:
    return lambda node: elementwise(node, ir.DataType.BOOL, lambda a, b: test(node.dims, a, b))


def at_least(dims: Dims, a: Dim, b: Dim) -> Dim | None:
    return 1 if dims.at_least(a, b) else 0 if dims.at_least(b, dims.add(a, 1)) else None


def logic(node: Operation) -> Outputs:
    def both(a: Dim, b: Dim) -> Dim | None:
        return 0 if 0 in (a, b) else b if a == 1 else a if b == 1 or a == b else None

    def either(a: Dim, b: Dim) -> Dim | None:
        return 1 if 1 in (a, b) else b if a == 0 else a if b == 0 or a == b else None

    def differs(a: Dim, b: Dim) -> Dim | None:
        known = isinstance(a, int) and isinstance(b, int)
        return int(a != b) if known else 0 if a == b else b if a == 0 else a if b == 0 else None

    compute: dict[str, Callable[..., Dim | None]] = {
        "And": both,
        "Or": either,
        "Xor": differs,
        "Not": lambda a: 1 - a if isinstance(a, int) else None,
    }
    return elementwise(node, ir.DataType.BOOL, compute[node.node.op_type], selects=True)


def where(node: Operation) -> Outputs:
    def choose(condition: Dim, x: Dim, y: Dim) -> Dim | None:
        if isinstance(condition, int):
            return x if condition else y
        return x if x == y else None

    return elementwise(node, node[1].dtype or node[2].dtype, choose, selects=True)


def clip(node: Operation) -> Outputs:
    data = node[0]
    bounds = [(given, cut) for given, cut in ((node.get(1), node.dims.max), (node.get(2), node.dims.min)) if given]
    if data.contents is None or any(b.contents is None for b, _ in bounds) or node.has("min") or node.has("max"):
        return [Known(data.dtype, data.dims)]
    elements = list(data.contents.ravel())
    for bound, cut in bounds:
        if bound.contents is not None:
            elements = [cut(element, bound.contents.ravel()[0]) for element in elements]
    return [Known(data.dtype, data.dims, pack(elements, data.contents.shape))]


def absolute(node: Operation) -> Outputs:
    sure = node.dims.nonnegative
    return elementwise(node, node[0].dtype, lambda a: abs(a) if isinstance(a, int) else a if sure(a) else None)


def cast(node: Operation) -> Outputs:
    source = node[0].dtype
    target = node[1].dtype if node.node.op_type == "CastLike" else ir.DataType(node.attribute("to", 0))
    dims = node.dims

    def convert(value: Dim) -> Dim | None:
        if target == ir.DataType.BOOL:
            return int(value != 0) if isinstance(value, int) else 1 if dims.at_least(value, 1) else None
        assert target is not None
        wider = source == ir.DataType.BOOL or (target == ir.DataType.INT64 and source != ir.DataType.UINT64)
        if target == source or (isinstance(value, str) and wider):
            return value
        return value if fits(value, target, dims) else None

    before = node[0]
    if before.contents is None or not (target in DISCRETE or target in WHOLE):
        return [Known(target, before.dims)]
    elements: list[Dim] = []
    for value in before.contents.ravel():
        converted = convert(value)
        if converted is None and target in WHOLE:
            return [Known(target, before.dims)]
        elements.append(dims.opaque("Cast", source, target, value) if converted is None else converted)
    return [Known(target, before.dims, pack(elements, before.contents.shape))]


def reduction(node: Operation) -> Outputs:
    data = node[0]
    if data.dims is None:
        return [Known(data.dtype)]
    rank = len(data.dims)
    axes = node.axes("axes", 1, rank)
    keep = node.attribute("keepdims", 1) == 1  # no other number is true, to onnxruntime
    if axes is None and (node.has("axes") or node.get(1) is not None):
        return [Known(data.dtype, node.unknown(rank) if keep else None)]
    if not axes:
        if node.attribute("noop_with_empty_axes", 0) == 1:
            return [Known(data.dtype, data.dims)]
        axes = tuple(range(rank))
    sizes = tuple(1 if i in axes else size for i, size in enumerate(data.dims) if keep or i not in axes)
    dims = node.dims
    combine: dict[str, Callable[..., Dim]] = {
        "ReduceSum": dims.add, "ReduceProd": dims.mul, "ReduceMax": dims.max, "ReduceMin": dims.min,
    }  # fmt: skip
    compute, whole = combine.get(node.node.op_type), len(axes) >= rank
    if compute is None or data.contents is None or not data.contents.size or not whole or data.dtype not in DISCRETE:
        return [Known(data.dtype, sizes)]
    value = compute(*data.contents.ravel())
    # onnxruntime adds and multiplies 64-bit integers as doubles
    rounded = isinstance(value, int) and abs(value) > 2**53
    if rounded or not (fits(value, data.dtype, dims) or node.node.op_type in ("ReduceMax", "ReduceMin")):
        value = dims.opaque(node.node.op_type, data.dtype, *data.contents.ravel())
    return [Known(data.dtype, sizes, pack([value], sizes))]


# ---- sources of contents


def constant(node: Operation) -> Outputs:
    attributes = node.node.attributes
    if "value" in attributes:
        tensor = attributes["value"].as_tensor()
        sizes = tuple(int(size) for size in tensor.shape.numpy())
        return [Known(tensor.dtype, sizes, contents_of(tensor))]
    if "value_int" in attributes:
        return [Known(ir.DataType.INT64, (), pack([attributes["value_int"].as_int()], ()))]
    if "value_ints" in attributes:
        given = list(attributes["value_ints"].as_ints())
        contents = pack(given, (len(given),)) if len(given) <= MAX_ELEMENTS else None
        return [Known(ir.DataType.INT64, (len(given),), contents)]
    if "value_float" in attributes:
        return [Known(ir.DataType.FLOAT, ())]
    if "value_floats" in attributes:
        return [Known(ir.DataType.FLOAT, (len(attributes["value_floats"].as_floats()),))]
    return None


def shape(node: Operation) -> Outputs:
    sizes = node[0].dims
    if sizes is None:
        return [Known(ir.DataType.INT64, node.unknown(1))]
    # Python slices clamp the bounds exactly as the operator does
    taken = sizes[node.attribute("start", 0) : node.attribute("end", len(sizes))]
    return [Known(ir.DataType.INT64, (len(taken),), pack(taken, (len(taken),)))]


def size(node: Operation) -> Outputs:
    sizes = node[0].dims
    contents = None if sizes is None else pack([node.dims.mul(*sizes)], ())
    return [Known(ir.DataType.INT64, (), contents)]


def constant_of_shape(node: Operation) -> Outputs:
    value = node.node.attributes["value"].as_tensor() if node.has("value") else None
    dtype = ir.DataType.FLOAT if value is None else value.dtype
    sizes = node.ints_or_input("", 0)
    if sizes is None:
        return [Known(dtype, node.of_length(0))]
    one = None if value is None else contents_of(value)
    static = [extent for extent in sizes if isinstance(extent, int)]
    count = math.prod(static) if len(static) == len(sizes) else MAX_ELEMENTS + 1
    if one is None or count > MAX_ELEMENTS or not all(0 <= extent <= MAX_ELEMENTS for extent in static):
        return [Known(dtype, sizes)]
    return [Known(dtype, sizes, pack([one.ravel()[0]] * count, sizes))]


def _number(node: Operation, index: int) -> float | None:
    """The number a floating input of one element is, where it is known."""
    value, known = node.node.inputs[index], node[index].contents
    if known is not None and known.size == 1 and isinstance(known.ravel()[0], int):
        return float(known.ravel()[0])
    tensor = None if value is None or value.is_graph_input() else value.const_value
    if tensor is None or tensor.size != 1 or isinstance(tensor, ir.ExternalTensor):
        return None
    return float(tensor.numpy().ravel()[0])


def _count(node: Operation) -> Dim:
    """The length of a Range of known floats, as onnxruntime rounds it; else a size of its own."""
    dtype, given = node[0].dtype, [_number(node, i) for i in range(3)]
    if dtype not in WHOLE or None in given:
        return node.dims.fresh()
    start, limit, step = (dtype.numpy().type(each) for each in given)
    steps = np.float64(limit - start) / np.float64(step) if step else np.inf
    return max(0, int(np.ceil(steps))) if np.isfinite(steps) else node.dims.fresh()


def arange(node: Operation) -> Outputs:
    dims, dtype = node.dims, node[0].dtype
    bounds = [node[i].contents for i in range(3)]
    start, limit, step = (None if each is None or each.size != 1 else each.ravel()[0] for each in bounds)
    if start is None or limit is None or not isinstance(step, int) or step == 0:
        return [Known(dtype, (_count(node),))]
    span = dims.sub(limit, start) if step > 0 else dims.sub(start, limit)
    if dtype is None or not (span == limit or fits(span, dtype, dims)):  # onnxruntime subtracts in this type
        return [Known(dtype, (dims.fresh(),))]
    length = dims.max(0, dims.ceildiv(span, abs(step)))
    if isinstance(length, str) or length > MAX_ELEMENTS:
        return [Known(dtype, (length,))]
    elements = [dims.add(start, i * step) for i in range(length)]
    exact = all(fits(element, dtype, dims) for element in elements)
    return [Known(dtype, (length,), pack(elements, (length,)) if exact else None)]


TABLE: Mapping[str, Function] = {
    **dict.fromkeys(
        "Add Sub Mul Div Mod Max Min Sum Mean Pow BitwiseAnd BitwiseOr BitwiseXor BitShift".split(),
        arithmetic,
    ),
    "Equal": comparison(lambda dims, a, b: 1 if a == b else 0 if dims.differ(a, b) else None),
    "Greater": comparison(lambda dims, a, b: at_least(dims, a, dims.add(b, 1))),
    "GreaterOrEqual": comparison(at_least),
    "Less": comparison(lambda dims, a, b: at_least(dims, b, dims.add(a, 1))),
    "LessOrEqual": comparison(lambda dims, a, b: at_least(dims, b, a)),
    **dict.fromkeys("And Or Xor Not".split(), logic),
    "Neg": lambda node: elementwise(node, node[0].dtype, lambda a: node.dims.sub(0, a)),
    "Abs": absolute,
    **dict.fromkeys("Cast CastLike".split(), cast),
    **dict.fromkeys(
        [f"Reduce{kind}" for kind in "Sum Prod Max Min Mean L1 L2 LogSum LogSumExp SumSquare".split()],
        reduction,
    ),
    **dict.fromkeys("Floor Ceil Round".split(), lambda node: [node[0]]),
    "Clip": clip,
    "Where": where,
    "Constant": constant,
    "Shape": shape,
    "Size": size,
    "ConstantOfShape": constant_of_shape,
    "Range": arange,
}
