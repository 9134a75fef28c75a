"""Operators this package has no shape function for, answered by the onnx-shape-inference library.

The library sees a copy of one node whose inputs carry stand-in names for the sizes, so names from a model
never reach its expression parser, and neither the model nor the library's registry is changed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext, registry  # type: ignore[import-untyped]  # it ships none

from ...egraph.terms.norm import EARLY
from ..model.domains import DEFAULT, RUNTIME
from .contrib import LIKE
from .dims import Dim, Dims
from .values import Known, Operation, Outputs


def library(node: Operation, opsets: Mapping[str, int]) -> Outputs:
    """One `Tensor` per output, None if the library does not know the operator or rejects the node.

    Sizes only where those of all operands are known: of one that is not, the library may take them to be another's.
    """
    registry.collect()  # idempotent: the first call imports its operators
    original = node.node
    if "keep_aspect_ratio_policy" in original.attributes:  # of a Resize; the library takes the sizes as given
        return None
    domain, kind, version = original.domain, original.op_type, node.opset
    if domain == RUNTIME and kind in LIKE:
        domain, kind = LIKE[kind]
        version = opsets.get(domain, version)
    elif domain == DEFAULT:
        version = max(version, EARLY.get(kind, version))
    function = registry.get(domain, kind, version=version)
    if function is None:
        return None
    stand_ins = StandIns(node.dims)
    context = ShapeInferenceContext(dict(opsets), policy="refine")
    inputs = [None if given is None else stand_ins.value(context, i, given) for i, given in enumerate(node.inputs)]
    copy = ir.Node(
        domain, kind, inputs, original.attributes.values(), num_outputs=len(original.outputs), version=original.version
    )
    for place, output in enumerate(copy.outputs):
        output.name = f"o{place}"
    try:
        function(context, copy)
    except Exception:  # it raises many types for nodes it cannot place, and "unknown" is the answer for all of them
        return None
    sized = all(given is None or given.dims is not None for given in node.inputs)
    return [
        Known(output.dtype, tuple(map(stand_ins.size, output.shape)) if sized and output.shape is not None else None)
        if output.type is None or isinstance(output.type, ir.TensorType)
        else Known()
        for output in copy.outputs
    ]


class StandIns:
    """The names one node's sizes have while the library looks at them."""

    def __init__(self, dims: Dims) -> None:
        self._dims = dims
        self._names: dict[Dim, str] = {}
        self._sizes: dict[str, Dim] = {}

    def dim(self, size: Dim) -> int | ir.SymbolicDim:
        if isinstance(size, int):
            return size
        name = self._names.setdefault(size, f"t{len(self._names)}")
        self._sizes[name] = size
        return ir.SymbolicDim(name)

    def value(self, context: ShapeInferenceContext, place: int, given: Known) -> ir.Value:
        """An input of the copy."""
        shape = None if given.dims is None else ir.Shape([self.dim(size) for size in given.dims])
        value = ir.Value(
            name=f"i{place}", shape=shape, type=None if given.dtype is None else ir.TensorType(given.dtype)
        )
        if given.contents is not None and given.contents.ndim <= 1 and given.dtype != ir.DataType.BOOL:
            context.set_symbolic_value(value, [self.dim(element) for element in given.contents.ravel()])
        return value

    def size(self, found: int | ir.SymbolicDim) -> Dim:
        """What the library found, as a size of this run."""
        if isinstance(found, int):
            return found if found >= 0 else self._dims.fresh()
        if found.value is None:
            return self._dims.fresh()
        if found.value in self._sizes:
            return self._sizes[found.value]
        try:
            top, bottom = self._parse(ast.parse(found.value, mode="eval").body)
        except (SyntaxError, LookupError):  # a spelling outside the arithmetic below: nothing is known
            top, bottom = self._dims.fresh(), 1
        self._sizes[found.value] = top if bottom == 1 else self._dims.fresh()
        return self._sizes[found.value]

    def _parse(self, node: ast.expr) -> tuple[Dim, int]:
        """Numerator and constant denominator. Raises LookupError outside plain arithmetic."""
        dims = self._dims
        match node:
            case ast.Constant(value=int(number)):
                return number, 1
            case ast.Name(id=name):
                # a name the library made up: the same one within a node is the same size
                return self._sizes.setdefault(name, dims.fresh()), 1
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                top, bottom = self._parse(inner)
                return dims.sub(0, top), bottom
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 < power < 8:
                top, bottom = self._parse(left)
                return dims.mul(*[top] * power), bottom**power
            case ast.BinOp(left=left, op=operator, right=right):
                (a, m), (b, n) = self._parse(left), self._parse(right)
                match operator:
                    case ast.Add():
                        return dims.add(dims.mul(a, n), dims.mul(b, m)), m * n
                    case ast.Sub():
                        return dims.sub(dims.mul(a, n), dims.mul(b, m)), m * n
                    case ast.Mult():
                        return dims.mul(a, b), m * n
                    case ast.Div() if isinstance(b, int) and b > 0:
                        return dims.mul(a, n), m * b
            case ast.Call(func=ast.Name(id="floor"), args=[inner]):
                top, bottom = self._parse(inner)
                return dims.floordiv(top, bottom), 1
            case ast.Call(func=ast.Name(id="Max" | "Min" as name), args=arguments):
                parts = [self._parse(argument) for argument in arguments]
                if all(bottom == 1 for _, bottom in parts):
                    tops = [top for top, _ in parts]
                    return (dims.max(*tops) if name == "Max" else dims.min(*tops)), 1
        raise LookupError
