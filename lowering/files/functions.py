"""Local functions: which of their calls are operators, which are written out, and which stay calls.

onnxruntime runs a node whose name is that of an operator it knows as that operator, whatever function the model
has under the name; the function is for other runtimes. All other calls are written out in place, if the body
means the same under the operator sets of the model and the result does not become too large.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import onnx_ir as ir
from onnxruntime.capi import _pybind_state

from ...egraph.errors import ModelError
from ..declared import Kind
from ..model.names import Names
from ..model.tensors import renamed
from ..model.wellformed import label
from ..opsets import same_operator
from ..reader import CALL
from ..shapes.inference import GRAPH_TYPES, graphs_of

#: A model may grow to so many nodes, or by this factor, by writing functions out.
_NODES, _GROWTH = 20_000, 4

Identifier = tuple[str, str, str]


def inline(model: ir.Model, operators: Collection[Kind] = ()) -> tuple[str, ...]:
    """Write the calls of local functions out, in place; returns why calls are left, one line a function.

    Each domain has its one name: `domains.unify` comes before.
    `operators` are further names, (domain, type), that stand for operators where onnxruntime knows none of that name;
    such functions stay in the model, as do those that remain calls and whatever they call. Raises ModelError for
    functions that call themselves, that take graphs as attributes, or that a call gives too many operands.
    """
    if not model.functions:
        return ()
    plan = _Inlining(model, operators)
    if plan.inlined:
        for domain, version in plan.imports.items():
            model.graph.opset_imports.setdefault(domain, version)
        _Inliner(model, plan.inlined).graph(model.graph)
    left: dict[Identifier, None] = {}
    for node in model.graph.all_nodes():
        if node.op_identifier() in plan.reasons:
            node.meta[CALL] = True
            left[node.op_identifier()] = None
    drop_unused(model)
    return tuple(f"function {_name(key)} stays a call: {plan.reasons[key]}" for key in left)


def called(model: ir.Model, nodes: Iterable[ir.Node]) -> dict[Identifier, ir.Function]:
    """The functions that these nodes call, be it through another."""
    found: dict[Identifier, ir.Function] = {}
    waiting = [node.op_identifier() for node in nodes] if model.functions else []
    while waiting:
        key = waiting.pop()
        if key in model.functions and key not in found:
            found[key] = model.functions[key]
            waiting += [node.op_identifier() for node in found[key].all_nodes()]
    return found


def drop_unused(model: ir.Model) -> None:
    """Remove the functions that nothing in the graph calls."""
    for key in model.functions.keys() - called(model, model.graph.all_nodes()).keys():
        del model.functions[key]


def same_in(function: ir.Function, opset: int) -> bool:
    """Whether the body of a function means the same in this opset of the default domain, too."""
    own = function.opset_imports.get("", opset)
    return own == opset or all(
        same_operator(node.op_type, own, opset) for node in function.all_nodes() if node.domain == ""
    )


def _name(key: Identifier) -> str:
    domain, name, overload = key
    return f"{domain}::{name}" + (f":{overload}" if overload else "")


class _Inlining:
    """Which functions are written out, and why others are not; `imports` are those of the model and of the functions
    it calls, the model's first.
    """

    def __init__(self, model: ir.Model, operators: Collection[Kind]) -> None:
        self._functions = model.functions
        self._operators = operators
        self._since: dict[Kind, list[int]] = {}
        for schema in _pybind_state.get_all_operator_schema():
            self._since.setdefault((schema.domain, schema.name), []).append(schema.since_version)
        self._nodes: dict[Identifier, list[ir.Node]] = {}
        for key, function in model.functions.items():
            self._nodes[key] = _checked(key, function)
        self.imports = dict(model.graph.opset_imports)
        self.reasons: dict[Identifier, str] = {}
        top = Counter(node.op_identifier() for node in model.graph.all_nodes())
        calls = self._calls(top)
        for key in calls:
            reason = self._changed(key)
            if reason:
                self.reasons[key] = reason
        self._bound(top, calls, _callees_first(calls))
        self.inlined = frozenset(calls) - frozenset(self.reasons)

    def _calls(self, top: Iterable[Identifier]) -> dict[Identifier, Counter[Identifier]]:
        """The functions reached from the graph, and how often each calls which others."""
        calls: dict[Identifier, Counter[Identifier]] = {}
        waiting = list(reversed([*top]))
        while waiting:
            key = waiting.pop()
            if key in calls or not self._function(key):
                continue
            for domain, version in self._functions[key].opset_imports.items():
                self.imports.setdefault(domain, version)
            calls[key] = Counter(node.op_identifier() for node in self._nodes[key])
            waiting += reversed([*calls[key]])
        return {key: Counter({k: n for k, n in used.items() if k in calls}) for key, used in calls.items()}

    def _function(self, key: Identifier) -> bool:
        """Whether a node of this name is a call, not an operator."""
        if key not in self._functions:
            return False
        kind = key[:2]
        if kind not in self._since:
            return kind not in self._operators
        version = self.imports.get(key[0])
        return version is not None and self._defined(kind, version) is None

    def _defined(self, kind: Kind, version: int) -> int | None:
        """Since when an operator is defined as it is in this version of its domain."""
        return max((since for since in self._since.get(kind, ()) if since <= version), default=None)

    def _changed(self, key: Identifier) -> str:
        """Why the body would not mean the same in the graph."""
        own = self._functions[key].opset_imports
        for node in self._nodes[key]:
            old, new = own.get(node.domain), self.imports.get(node.domain)
            if old in (None, new) or new is None or self._function(node.op_identifier()):
                continue
            kind = node.domain, node.op_type
            same = self._defined(kind, old) is not None and self._defined(kind, old) == self._defined(kind, new)
            if not same and not (node.domain == "" and old < new and same_operator(node.op_type, old, new)):
                domain = node.domain or "ai.onnx"
                return f"{node.op_type} of its operator set {old} of {domain} need not be that of the model's {new}"
        return ""

    def _bound(
        self, top: Mapping[Identifier, int], calls: Mapping[Identifier, Mapping[Identifier, int]],
        order: Iterable[Identifier],
    ) -> None:  # fmt: skip
        """Leave the largest functions calls, as many as it takes to keep the graph small."""
        order = list(order)
        file = sum(top.values()) + sum(map(len, self._nodes.values()))
        bound = max(_NODES, _GROWTH * file)

        def sizes(largest: int | None) -> dict[Identifier, int]:
            found: dict[Identifier, int] = {}
            for key in order:
                inner = sum(n * (found[k] - 1) for k, n in calls[key].items())
                left = key in self.reasons or (largest is not None and whole[key] > largest)
                found[key] = 1 if left else len(self._nodes[key]) + inner
            return found

        def total(sizes: Mapping[Identifier, int]) -> int:
            return sum(n * sizes.get(key, 1) for key, n in top.items())

        whole: dict[Identifier, int] = {}
        whole = sizes(None)
        if total(whole) <= bound:
            return
        # the functions that call others are the larger ones, so each that stays keeps what it calls
        limits = sorted({0, *whole.values()})
        most = limits[max(0, bisect_right(limits, bound, key=lambda limit: total(sizes(limit))) - 1)]
        for key in order:
            if key not in self.reasons and whole[key] > most:
                grown = f"{whole[key]:,}" if whole[key] < 10**9 else "more than 1,000,000,000"
                self.reasons[key] = f"it stands for {grown} nodes, too many to write out; the file holds {file:,}"


def _checked(key: Identifier, function: ir.Function) -> list[ir.Node]:
    """The nodes of a function, those of its bodies included; in order, once it is sorted."""
    waiting = [*function]
    takes = any(a.type in GRAPH_TYPES for a in function.attributes.values())
    for node in waiting:
        takes = takes or any(a.type in GRAPH_TYPES and a.is_ref() for a in node.attributes.values())
        for body in () if takes else graphs_of(node):
            waiting += body
    if takes:
        raise ModelError(f"local function {_name(key)} takes a graph as an attribute; write its calls out first")
    try:
        function.sort()
    except ValueError as error:
        raise ModelError(f"local function {_name(key)} has a cycle; ONNX graphs are acyclic") from error
    return waiting


def _callees_first(calls: Mapping[Identifier, Mapping[Identifier, int]]) -> list[Identifier]:
    try:
        return [*TopologicalSorter(calls).static_order()]
    except CycleError as error:
        circle = " -> ".join(map(_name, error.args[1]))
        raise ModelError(f"local functions call themselves ({circle}); onnxruntime has no recursion") from error


class _Inliner:
    """Writes calls out, from the outside in: what a call is replaced by is looked at in turn."""

    def __init__(self, model: ir.Model, inlined: Collection[Identifier]) -> None:
        self._model, self._inlined, self._names = model, inlined, Names.of(model)

    def graph(self, graph: ir.Graph) -> None:
        for node in graph:
            if node.op_identifier() in self._inlined:
                self._expand(graph, node)
                continue
            for body in graphs_of(node):
                self.graph(body)

    def _expand(self, graph: ir.Graph, call: ir.Node) -> None:
        function = self._model.functions[call.op_identifier()]
        if len(call.inputs) > len(function.inputs) or len(call.outputs) > len(function.outputs):
            what = f"{len(call.inputs)} inputs and {len(call.outputs)} outputs"
            raise ModelError(f"{label(call)}: {what} are not what {_name(call.op_identifier())} has")
        try:
            copy = function.clone()
        except RuntimeError as error:  # of onnx-ir, which names the innermost cause
            name = _name(call.op_identifier())
            raise ModelError(f"local function {name}: an input of a node in it is produced by nothing") from error
        made, outputs = [*copy], [*copy.outputs]
        given = {f: call.inputs[i] if i < len(call.inputs) else None for i, f in enumerate(copy.inputs)}
        attributes = {name: a for name, a in function.attributes.items() if a.value is not None} | {**call.attributes}
        for node in made:
            self._adapt(node, call, attributes)
        copy.remove(made)
        copy.inputs.clear()
        copy.outputs.clear()
        for operand, value in given.items():
            if value is not None:
                operand.replace_all_uses_with(value, replace_graph_outputs=True)
            for use in [*operand.uses()]:
                use.node.replace_input_with(use.idx, None)
        results = [(given.get(f, f), out) for f, out in zip(outputs, call.outputs, strict=False) if out.name]
        fresh = {out for node in made for out in node.outputs}
        # outputs of the graph first: they must keep their names
        for value, out in sorted(results, key=lambda result: not result[1].is_graph_output()):
            final = out.is_graph_output()
            if value is None:
                if final:
                    raise ModelError(f"graph output {out.name!r} is an operand that a call leaves out")
                for use in list(out.uses()):
                    use.node.replace_input_with(use.idx, None)
                continue
            if final and value not in fresh:  # an operand of the call, or another of its outputs
                self._model.graph.opset_imports.setdefault("", 1)
                named = self._names.nodes.fresh(f"Identity_{out.name}")
                made.append(ir.Node("", "Identity", [value], num_outputs=1, name=named))
                value = made[-1].outputs[0]
                fresh.add(value)
            if value in fresh:
                fresh.remove(value)
                _take_over(value, out, final)
            out.replace_all_uses_with(value, replace_graph_outputs=True)
        graph.insert_after(call, made)
        graph.remove(call, safe=True)

    def _adapt(self, node: ir.Node, call: ir.Node, attributes: Mapping[str, ir.Attr]) -> None:
        """Give a node copied out of a function, and what is in its bodies, new names and the attributes of the call."""
        for key, a in [*node.attributes.items()]:
            value = attributes.get(a.ref_attr_name or "") if a.is_ref() else a
            if value is None:  # nor has it a default: the node has no such attribute, and its operator's default holds
                node.attributes.pop(key)
            elif value is not a:
                node.attributes[key] = ir.Attr(key, value.type, value.value)
        for body in graphs_of(node):
            stored = [*body.initializers.values()]
            body.initializers.clear()  # a new name may be that of one that is yet to get its own
            for v in dict.fromkeys((*body.inputs, *stored)):
                self._rename(v)
            for v in stored:
                body.register_initializer(v)
            for inner in body:
                self._adapt(inner, call, attributes)
        for v in node.outputs:
            self._rename(v)
        node.name = self._names.nodes.fresh(node.name or f"{call.name or call.op_type}/{node.op_type}")
        metadata = {**call.metadata_props, **node.metadata_props}
        node.metadata_props.clear()
        node.metadata_props.update(metadata)

    def _rename(self, value: ir.Value) -> None:
        name = self._names.values.fresh(value.name) if value.name else ""  # "" is an output that is left out
        if value.const_value is not None:
            value.const_value = renamed(value.const_value, name)
        value.name = name


def _take_over(value: ir.Value, out: ir.Value, final: bool) -> None:
    """Let a value be called what the output of the call was; an output of the graph stays just as it was declared."""
    value.name = out.name
    if final or out.type is not None:
        value.type = out.type
    if final or out.shape is not None:
        value.shape = out.shape
    value.doc_string = out.doc_string or value.doc_string
    value.metadata_props.update(out.metadata_props)
    value.meta.update(out.meta)
