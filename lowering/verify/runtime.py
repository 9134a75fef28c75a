"""What runs a model: onnxruntime's CPU provider, and for what it lacks a library or the numpy meaning of the caller's.

onnxruntime runs no operator written in Python. A model with such operators runs in stages: sessions for what lies
between them, and numpy at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi import _pybind_state

from ...egraph.budget import Budget, Limit, LimitReached, Limits, Stop
from ...egraph.errors import ModelError
from ...egraph.terms import Op
from ..declared import Kind, arguments, call, known_kinds
from ..files.load import inlined
from ..model.domains import plain
from ..model.operators import title
from ..model.tensors import elements
from ..shapes.inference import inner_uses
from .feeds import Array, Given, Model
from .session import CPU, LONGEST, NotImplementedHere, Session, TooLong, quiet_options, reason, source_of

#: What is being done when time is short.
DOING = "verifying"


class Runner(Protocol):
    """A loaded model."""

    def run(self, feed: Mapping[str, Given]) -> dict[str, Array]: ...


@dataclass(frozen=True)
class Runtime:
    """onnxruntime with the operators of a caller: declared ones by kind, and those of custom-op libraries.

    Loading a model and running it raise LimitReached where the longest of its kind so far does not fit the budget.
    """

    declared: Mapping[Kind, Op] = field(default_factory=dict)
    libraries: Sequence[str] = ()
    budget: Budget = field(default_factory=lambda: Budget(Limits()))

    def check(self) -> None:
        """Raises ModelError for a library that onnxruntime does not load."""
        for library in self.libraries:
            try:
                ort.SessionOptions().register_custom_ops_library(library)
            except Exception as error:  # onnxruntime's exceptions share no base of their own
                raise ModelError(f"custom-op library {library}: onnxruntime cannot load it: {reason(error)}") from error

    def unknown(self, model: ir.Model, beside: Sequence[str] = ()) -> str:
        """The node that nothing here can run, and why, or nothing. Domains `beside` are not looked at."""
        model = inlined(model)
        top = set(model.graph)
        for node, op in self._lacking(model).items():
            if node.domain in beside:
                continue
            said = f"onnxruntime has no such operator as that of {title(node)}"
            if op is None or op.numpy is None:
                return f"{said}; declare it with a numpy meaning, or name its custom-op library"
            if node not in top:
                return f"{said}, which lies in the body of another node; name its custom-op library"
            if arguments(node, op) is None:
                return f"{said}, which has other operands or attributes than its declaration says"
        return ""

    def open(self, model: Model, read: ir.Model, optimize: bool, weights: Mapping[str, Array] | None = None) -> Runner:
        """The model, ready to run. Raises what onnxruntime raises."""
        with self.budget.step(DOING, "load"):
            return _Timed(self._open(model, read, optimize, weights), self.budget)

    def _open(self, model: Model, read: ir.Model, optimize: bool, weights: Mapping[str, Array] | None) -> Runner:
        calls = self._calls(read)
        if not calls:
            try:
                return Session(source_of(model, read), optimize, weights, self.libraries, self.budget.left)
            except NotImplementedHere:  # onnxruntime may know an operator and not have it
                calls = self._calls(read, kernels=True)
                if not calls:
                    raise
        return _Stages(*calls, optimize, weights or {}, self.libraries, self.budget.left)

    def _calls(self, model: ir.Model, kernels: bool = False) -> tuple[ir.Model, Mapping[ir.Node, Op]] | None:
        """The model, its functions inlined, and the nodes to compute by their meaning; None without any."""
        if not any(self._lacking(model, kernels).values()):
            return None
        whole = inlined(model)
        return whole, {node: op for node, op in self._lacking(whole, kernels).items() if op is not None}

    def _lacking(self, model: ir.Model, kernels: bool = False) -> dict[ir.Node, Op | None]:
        """The nodes whose operators neither onnxruntime nor a library knows, with `kernels` also those declared ones
        that onnxruntime knows and has no kernel for.
        """
        local = {(domain, name) for domain, name, _ in model.functions}
        kinds: dict[Kind, list[ir.Node]] = {}
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            for node in graph.all_nodes():
                kinds.setdefault((plain(node.domain), node.op_type), []).append(node)
        known = known_kinds() | local
        if kernels:
            own = {(plain(k.domain), k.op_name) for k in _pybind_state.get_all_opkernel_def() if k.provider == CPU}
            known -= self.declared.keys() - own
        lacking = {kind: nodes for kind, nodes in kinds.items() if kind not in known}
        if self.libraries:
            lacking = {k: n for k, n in lacking.items() if not _registered(k, len(n[0].inputs), self.libraries)}
        return {node: self.declared.get(kind) for kind, nodes in lacking.items() for node in nodes}


@dataclass(frozen=True)
class _Timed:
    """A loaded model whose runs are begun only if there is time, and end with it."""

    runner: Runner
    budget: Budget

    def run(self, feed: Mapping[str, Given]) -> dict[str, Array]:
        with self.budget.step(DOING, "run"):
            try:
                return self.runner.run(feed)
            except TooLong:
                self.budget.check(DOING)
                raise LimitReached(Stop(Limit.SECONDS, f"{LONGEST:g} s for one run while {DOING}")) from None


def _registered(kind: Kind, inputs: int, libraries: Sequence[str]) -> bool:
    """Whether a library has an operator: onnxruntime lists no such operators, but says of a node that it has none."""
    domain, op = kind
    given = [onnx.helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.FLOAT, None) for i in range(inputs)]
    node = onnx.helper.make_node(op, [v.name for v in given], ["y"], domain=domain)
    graph = onnx.helper.make_graph([node], "probe", given, [onnx.helper.make_empty_tensor_value_info("y")])
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in dict([("", 17), (domain, 17 if not domain else 1)]).items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = quiet_options(libraries)
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    except Exception as error:
        return "not a registered function/op" not in str(error)
    return True


class _Stages:
    """A model in stages: the nodes up to the first calls, these calls, the nodes up to the next, and so on."""

    def __init__(
        self, model: ir.Model, calls: Mapping[ir.Node, Op], optimize: bool, weights: Mapping[str, Array],
        libraries: Sequence[str], patience: Callable[[], float],
    ) -> None:  # fmt: skip
        self._model, self._calls, self._optimize, self._weights = model, calls, optimize, weights
        self._libraries, self._patience = libraries, patience
        self._sessions: dict[tuple[Any, ...], Session] = {}
        self._uses = {node: _uses(node, model.graph) for node in model.graph}
        self._stage = self._stages()
        self._last = max(self._stage.values(), default=0)
        self._later: dict[ir.Value, int] = {}  # the last stage that uses a value; a call ends its stage
        for node, stage in self._stage.items():
            for value in self._uses[node]:
                self._later[value] = max(self._later.get(value, 0), stage + (node in calls))
        self._later |= dict.fromkeys(model.graph.outputs, self._last + 2)

    def _stages(self) -> dict[ir.Node, int]:
        found: dict[ir.Node, int] = dict.fromkeys(self._model.graph, 0)
        settled = False
        while not settled:  # one round, and one to see it, where nodes stand in order
            settled = True
            for node in found:
                made = [p for v in self._uses[node] if (p := v.producer()) in found]
                stage = max((found[p] + (p in self._calls) for p in made), default=0)
                settled &= stage == found[node]
                found[node] = stage
        return found

    def run(self, feed: Mapping[str, Given]) -> dict[str, Array]:
        """As `Session.run`. Raises what a numpy meaning raises, too, as a ValueError that names the node."""
        known: dict[ir.Value, Given] = {v: feed[n] for v in self._model.graph.inputs if (n := v.name or "") in feed}
        for stage in range(self._last + 1):
            nodes = [node for node, at in self._stage.items() if at == stage]
            self._plain([node for node in nodes if node not in self._calls], stage, known)
            for node in nodes:
                if node in self._calls:
                    known[node.outputs[0]] = self._call(node, known)
        return {v.name or "": np.asarray(self._value(v, known)) for v in self._model.graph.outputs}

    def _value(self, value: ir.Value, known: Mapping[ir.Value, Given]) -> Given:
        if value in known:
            return known[value]
        given = self._weights.get(value.name or "")
        if given is None and value.const_value is not None:
            given = elements(value.const_value)
        return given

    def _call(self, node: ir.Node, known: Mapping[ir.Value, Given]) -> Array:
        op = self._calls[node]
        operands = [self._value(x, known) if isinstance(x, ir.Value) else x for x in arguments(node, op) or ()]
        try:
            return call(op, operands)
        except Exception as error:  # the caller's function may raise anything
            raise ValueError(f"{title(node)}: its numpy meaning fails: {error}") from error

    def _plain(self, nodes: Sequence[ir.Node], stage: int, known: dict[ir.Value, Given]) -> None:
        """What onnxruntime computes in a stage, as far as a call, a later stage or the caller wants it."""
        made = {value for node in nodes for value in node.outputs}
        wanted = [v for node in nodes for v in node.outputs if v.name and self._later.get(v, 0) > stage]
        if not wanted:
            return
        used = dict.fromkeys(v for node in nodes for v in self._uses[node] if v not in made)
        cuts = [v for v in used if v in known]
        kinds = tuple(a.dtype if isinstance(a, np.ndarray) else None for a in (known[v] for v in cuts))
        session = self._sessions.get((stage, kinds))
        if session is None:
            session = self._sessions[stage, kinds] = self._session(cuts, wanted, known)
        found = session.run({v.name or "": known[v] for v in cuts})
        known.update((v, found[v.name or ""]) for v in wanted)

    def _session(
        self, cuts: Sequence[ir.Value], wanted: Sequence[ir.Value], known: Mapping[ir.Value, Given]
    ) -> Session:
        graph = ir.convenience.extract(self._model.graph, cuts, wanted)
        for cut, value in zip(cuts, graph.inputs, strict=True):
            given = known[cut]
            if isinstance(given, np.ndarray):
                kind = ir.DataType.STRING if given.dtype.kind in "OU" else ir.DataType.from_numpy(given.dtype)
                value.type, value.shape = ir.TensorType(kind), None
        for value in graph.outputs:
            value.shape = None  # what is said of it inside a model need not be true
        part = ir.Model(graph, ir_version=self._model.ir_version, functions=list(self._model.functions.values()))
        weights = {n: a for n, a in self._weights.items() if n in graph.initializers}
        return Session(source_of(part, part), self._optimize, weights, self._libraries, self._patience)


def _uses(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """The values of a graph that a node uses, its bodies included."""
    given = (v for v in node.inputs if v is not None)
    return [*dict.fromkeys([*given, *(v for v in inner_uses(node) if v.graph is graph)])]
