"""Make a failing model small: drop outputs and nodes while it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from judge import Fault, Redraw, everything
from models import Drawn, Feeds, graphs
from onnx import helper as h

Fails = Callable[[Drawn], Fault | None]


@dataclass
class Pinned(Drawn):
    """A model with the arrays that it is fed with."""

    arrays: list[Feeds] = field(default_factory=list)
    odd: int = -1  # the number of the feed with special values, -1 for none

    @property
    def special(self) -> int:
        return self.odd

    def feeds(self) -> list[Feeds]:
        names = {v.name for v in self.model.graph.input}
        return [{k: v for k, v in each.items() if k in names} for each in self.arrays]


def reduce(drawn: Drawn, fault: Fault, judged: Fails, seconds: float = 60) -> tuple[Drawn, Fault]:
    """The smallest model found in the time that has a fault of the same kind, and that fault."""
    own = {k: getattr(drawn, k) for k in ("model", "inputs", "kinds", "fragments", "seed")}
    best = Pinned(**own, arrays=drawn.feeds(), odd=drawn.special)
    end = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in _smaller(best):
            if time.monotonic() > end:
                break
            try:
                found = judged(smaller)
            except Redraw:
                continue
            if found is not None and found.kind == fault.kind:
                best, fault, progress = smaller, found, True
                break
    return best, fault


def _changed(drawn: Pinned, model: onnx.ModelProto, arrays: list[Feeds] | None = None) -> Pinned:
    _clean(model)
    return replace(drawn, model=model, arrays=arrays or drawn.arrays)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _clean(model: onnx.ModelProto) -> None:
    """Leave out what no output needs."""
    graph = model.graph
    needed = {o.name for o in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.append(node)
            inside = [g for a in node.attribute if a.HasField("g") for g in graphs(a.g)]
            needed |= set(node.input) | {o.name for g in inside for o in g.output}
            needed |= {i for g in inside for n in g.node for i in (*n.input, *n.output)}
    made = {o for node in kept for o in node.output}
    for field_, keep in (
        (graph.node, [*reversed(kept)]), (graph.initializer, [t for t in graph.initializer if t.name in needed]),
        (graph.input, [v for v in graph.input if v.name in needed]),
        (graph.value_info, [v for v in graph.value_info if v.name in made]),
    ):  # fmt: skip
        copies = [type(x).FromString(x.SerializeToString()) for x in keep]
        del field_[:]
        field_.extend(copies)
    called = {n.op_type for n in graph.node if n.domain == "local"} | {
        n.op_type for f in model.functions for n in f.node
    }
    functions = [onnx.FunctionProto.FromString(f.SerializeToString()) for f in model.functions if f.name in called]
    del model.functions[:]
    model.functions.extend(functions)


def _smaller(drawn: Pinned) -> Iterator[Pinned]:
    """Models with less in them, the boldest changes first."""
    graph = drawn.model.graph
    if len(graph.output) > 1:
        for k in range(len(graph.output)):
            model = _copy(drawn.model)
            kept = onnx.ValueInfoProto.FromString(model.graph.output[k].SerializeToString())
            del model.graph.output[:]
            model.graph.output.append(kept)
            yield _changed(drawn, model)
    if len(drawn.arrays) > 1:
        for number, each in enumerate(drawn.arrays):
            odd = 0 if number == drawn.odd else -1
            yield replace(_changed(drawn, _copy(drawn.model), [each]), odd=odd)
    if graph.value_info:
        model = _copy(drawn.model)
        del model.graph.value_info[:]
        yield _changed(drawn, model)
    values = _values(drawn)
    for k in reversed(range(len(graph.node))):
        if values and all(o in values[0] for o in graph.node[k].output if o):
            yield from _cut(drawn, k, values)
    for k in range(len(graph.node)):
        yield from _bypass(drawn, k)
    for k, v in enumerate(graph.input):
        if any(t.name == v.name for t in graph.initializer):
            model = _copy(drawn.model)
            del model.graph.input[k]
            yield _changed(drawn, model, [{n: a for n, a in each.items() if n != v.name} for each in drawn.arrays])


def _values(drawn: Pinned) -> list[Feeds]:
    """What each value of the main graph is, for each feed."""
    found = everything(_copy(drawn.model), drawn.feeds())
    return [{k: v for k, v in each.items() if isinstance(v, np.ndarray)} for each in found]


def _cut(drawn: Pinned, k: int, values: list[Feeds]) -> Iterator[Pinned]:
    """The outputs of a node become inputs."""
    model = _copy(drawn.model)
    node = model.graph.node[k]
    names = [o for o in node.output if o]
    if any(o.name in names for o in model.graph.output):
        return
    del model.graph.node[k]
    for name in names:
        columns = [*zip(*(v[name].shape for v in values), strict=True)]
        named = [c[0] if len(set(c)) == 1 else f"n{[*dict.fromkeys(columns)].index(c)}" for c in columns]
        kind = h.np_dtype_to_tensor_dtype(values[0][name].dtype)
        model.graph.input.append(h.make_tensor_value_info(name, kind, named))
    arrays = [each | {n: v[n] for n in names} for each, v in zip(drawn.arrays, values, strict=True)]
    yield _changed(drawn, model, arrays)


def _bypass(drawn: Pinned, k: int) -> Iterator[Pinned]:
    """The value of a node is replaced by one of its operands."""
    given = drawn.model.graph.node[k]
    if any(o.name in given.output for o in drawn.model.graph.output):
        return
    for operand in dict.fromkeys(i for i in given.input if i):
        model = _copy(drawn.model)
        for graph in graphs(model.graph):
            for node in graph.node:
                for i, name in enumerate(node.input):
                    if name == given.output[0]:
                        node.input[i] = operand
        del model.graph.node[k]
        yield _changed(drawn, model)


def told(drawn: Drawn, fault: Fault) -> str:
    """The fault and the model as text."""
    constants = []
    for t in drawn.model.graph.initializer:
        array = onnx.numpy_helper.to_array(t)
        constants.append(f"  {t.name} = {array.dtype}{list(array.shape)} {array.reshape(-1)[:12].tolist()}")
    text = onnx.printer.to_text(drawn.model)
    return "\n".join([str(fault), text, "constants:", *constants])
