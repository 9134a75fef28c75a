"""What a ModelProto must be before anything else looks at it: the faults that onnx-ir and the readers would
meet as a warning on stderr, as the second of two producers winning, or as a KeyError deep inside.

Only operators of the default domain are held to their definition, and only where this onnx has one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import onnx_ir as ir
from google.protobuf.message import Message  # type: ignore[import-untyped]  # ships no types
from onnx import numpy_helper

from ...egraph.errors import ModelError
from .domains import DEFAULT, imported, plain, schema

#: Tensors up to this many elements are decoded to see whether they are whole.
_SMALL = 4096
_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


def check(proto: onnx.ModelProto) -> None:
    """Raises ModelError naming the node, value or tensor: a value that nothing produces, or two nodes do;
    operands or attributes its operator does not have; a tensor without its elements; a name that is no text.
    """
    _strings(proto, beside=("graph", "functions"))
    opset = _imported(proto.opset_import, 0)
    _Check(opset).graph(proto.graph, frozenset())
    for function in proto.functions:
        _strings(function, beside=("node",))
        own = _imported(function.opset_import, opset)
        _Check(own).scope(function.input, (), function.node, function.output, frozenset())


def known_opset(version: int) -> int:
    """The version of the default domain's operators. Raises ModelError if the installed onnx does not know it."""
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= version <= newest:
        raise ModelError(f"unknown opset {version} of the default domain; the installed onnx knows 1 to {newest}")
    return version


def _imported(imports: Iterable[onnx.OperatorSetIdProto], otherwise: int) -> int:
    version = imported(imports).get(DEFAULT)
    return otherwise if version is None else known_opset(version)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


class _Check:
    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._signatures: dict[str, _Signature | None] = {}

    def graph(self, graph: onnx.GraphProto, outer: frozenset[str]) -> None:
        _strings(graph, beside=("node", "initializer", "sparse_initializer"))
        inputs = [v.name for v in graph.input]
        stored = [t.name for t in graph.initializer]
        if len(set(stored)) < len(stored):
            raise ModelError(f"initializer {_twice(stored)!r} is given twice")
        for tensor in graph.initializer:
            _tensor(tensor, f"initializer {tensor.name!r}")
        self.scope(inputs, set(stored) - set(inputs), graph.node, [v.name for v in graph.output], outer)

    def scope(
        self,
        inputs: Iterable[str],
        stored: Iterable[str],
        nodes: Sequence[onnx.NodeProto],
        outputs: Iterable[str],
        outer: frozenset[str],
    ) -> None:
        defined = [*inputs, *stored, *(o for node in nodes for o in node.output if o)]
        here = frozenset(defined)
        if len(here) < len(defined):
            raise ModelError(f"value {_twice(defined)!r} is produced twice")
        for name in defined:
            _text(name)
        known = outer | here if outer else here
        for node in nodes:
            _strings(node, beside=("input", "output", "attribute"))
            for a in node.attribute:
                _text(a.name)
            for name in node.input:
                if name and name not in known:
                    raise ModelError(f"{label(node)}: input {name!r} is produced by nothing")
            self._node(node)
            for body in bodies(node):
                self.graph(body, known)
        for name in outputs:
            if name not in known:
                raise ModelError(f"graph output {name!r} is produced by nothing")

    def _node(self, node: onnx.NodeProto) -> None:
        given = {a.name: a for a in node.attribute}
        for name, a in given.items():
            if not a.type:
                raise ModelError(f"{label(node)}: attribute {name!r} has no type")
            if a.type in (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS):
                raise ModelError(f"{label(node)}: attribute {name!r} is sparse, which is not supported; store it dense")
            if a.type == onnx.AttributeProto.TENSOR and not a.ref_attr_name:
                _tensor(a.t, f"{label(node)}: attribute {name!r}")
        if plain(node.domain) != DEFAULT or (signature := self._signature(node.op_type)) is None:
            return
        if not signature.inputs[0] <= len(node.input) <= signature.inputs[1]:
            raise ModelError(f"{label(node)}: {len(node.input)} inputs are not what the operator takes")
        if not signature.outputs[0] <= len(node.output) <= signature.outputs[1]:
            raise ModelError(f"{label(node)}: {len(node.output)} outputs are not what the operator has")
        for place, name in enumerate(node.input):
            if not name and not signature.may_miss(place):
                raise ModelError(f"{label(node)}: operand {place} is missing, and the operator needs it")
        for name in signature.required:
            if name not in given:
                raise ModelError(f"{label(node)}: attribute {name!r} is missing")
        for name, a in given.items():
            kind = signature.kinds.get(name, a.type)
            if a.type != kind:
                wanted = onnx.AttributeProto.AttributeType.Name(kind)
                raise ModelError(f"{label(node)}: attribute {name!r} is not of type {wanted}")
        if fault := _fault(node, {name: a for name, a in given.items() if not a.ref_attr_name}, signature.since):
            raise ModelError(f"{label(node)}: {fault}")

    def _signature(self, op: str) -> _Signature | None:
        if op not in self._signatures:  # an operator of onnxruntime in the default domain has no definition
            definition = schema(op, self._opset)
            self._signatures[op] = None if definition is None else _Signature(definition)
        return self._signatures[op]


class _Signature:
    """What a schema says of operands and attributes; each look at a schema itself makes new objects."""

    def __init__(self, schema: onnx.defs.OpSchema) -> None:
        self.since = schema.since_version
        self.inputs = schema.min_input, schema.max_input
        self._single = [i.option == onnx.defs.OpSchema.FormalParameterOption.Single for i in schema.inputs]
        self.outputs = schema.min_output, schema.max_output
        attributes = schema.attributes
        self.required = [name for name, a in attributes.items() if a.required]
        types = onnx.AttributeProto.AttributeType
        self.kinds = {name: types.Value(str(a.type).rpartition(".")[2]) for name, a in attributes.items()}

    def may_miss(self, place: int) -> bool:
        """Whether an operand may be left out; of operands that repeat, the definition does not say."""
        return place >= len(self._single) or not self._single[place]


def _fault(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto], since: int) -> str:
    """What is wrong with attributes that fit their types, and with bodies, or nothing."""
    for name in ("to", "dtype"):
        a = given.get(name)
        if a is not None and a.type == onnx.AttributeProto.INT and a.i not in _TYPES:
            return f"attribute {name!r} is {a.i}, which is no type of elements"
    match node.op_type:
        case "Transpose" if "perm" in given:
            perm = list(given["perm"].ints)
            return "" if sorted(perm) == [*range(len(perm))] else f"attribute 'perm' is {perm}, no order of axes"
        case "Split" if "num_outputs" in given and given["num_outputs"].i < len(node.output):  # onnxruntime aborts
            return f"attribute 'num_outputs' is {given['num_outputs'].i}, and the node has {len(node.output)} outputs"
        case "ConstantOfShape" if "value" in given:
            count = math.prod(given["value"].t.dims)
            return "" if count == 1 else f"attribute 'value' has {count} elements; it must have one"
        case "If":
            branches = [given[name].g for name in ("then_branch", "else_branch")]
            if any(b.input or len(b.output) < len(node.output) for b in branches):
                return "each branch must have no inputs, and the outputs of the node"
        case "Loop":  # the count and the condition of the node are the number and the condition of the body
            return _misfit(given["body"].g, max(len(node.input), 2), len(node.output) + 1, len(node.input) - 1)
        case "Scan" if since >= 9:
            count, states = given["num_scan_inputs"].i, len(node.input) - given["num_scan_inputs"].i
            axes = given["scan_input_axes"].ints if "scan_input_axes" in given else ()
            if count < 1 or states < 0 or (axes and len(axes) != count):
                return f"attribute 'num_scan_inputs' is {count}, which does not fit its operands"
            return _misfit(given["body"].g, len(node.input), len(node.output), states)
        case _:
            pass
    return ""


def _misfit(body: onnx.GraphProto, inputs: int, outputs: int, least: int) -> str:
    if len(body.input) != inputs or len(body.output) < max(outputs, least):
        given = f"{len(body.input)} inputs and {len(body.output)} outputs"
        return f"the body has {given}; {inputs} and {max(outputs, least)} are wanted"
    return ""


def produced(value: ir.Value) -> bool:
    """Whether anything gives the value."""
    return value.producer() is not None or value.is_graph_input() or value.const_value is not None


@contextmanager
def understanding(node: ir.Node) -> Iterator[None]:
    """What the code that knows an operator raises on a node becomes a ModelError naming the node.

    A definition says how many operands there are, of what kind; what they must be to each other, and all about
    operators without a definition, only that code knows.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        what = f"{label(node)}: operands or attributes are not what the operator takes ({reason})"
        raise ModelError(what) from error


def _tensor(tensor: onnx.TensorProto, what: str) -> None:
    if not tensor.data_type or any(d < 0 for d in tensor.dims):
        raise ModelError(f"{what}: a tensor of no type, or of a negative size")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not entry.value.isdecimal():
                said = f"the {entry.key} of its external data is {entry.value!r}"
                raise ModelError(f"{what}: {said}; a number from 0 up is wanted")
        return
    if tensor.data_type == onnx.TensorProto.STRING:
        if len(tensor.string_data) != math.prod(tensor.dims):
            raise ModelError(f"{what}: {len(tensor.string_data)} strings are not what its dims say")
    elif math.prod(tensor.dims) <= _SMALL:
        try:
            numpy_helper.to_array(tensor)
        except Exception as error:  # numpy and onnx raise several kinds for a wrong number of bytes
            reason = (str(error).splitlines() or [""])[0]
            raise ModelError(f"{what}: the tensor cannot be decoded ({reason})") from error
    elif tensor.ByteSize() < math.prod(tensor.dims) // 4:  # no element has less than two bits
        raise ModelError(f"{what}: the tensor has fewer elements than its dims say")


def _text(name: object) -> None:
    if not isinstance(name, str):  # protobuf hands out the bytes of a string that is not UTF-8
        raise ModelError(f"name {name!r} is not UTF-8")


def _strings(message: Message, beside: Collection[str] = ()) -> None:
    """Raises ModelError for a string in it that is no text; what lies in the fields `beside` is not looked at."""
    for field, value in message.ListFields():
        if field.name in beside or field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for item in (value,) if isinstance(value, str | bytes | Message) else value:
            _strings(item) if isinstance(item, Message) else _text(item)


def label(node: onnx.NodeProto | ir.Node) -> str:
    """How a message names a node."""
    return f"node {node.name!r} ({node.op_type})"


def _twice(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("all names differ")
