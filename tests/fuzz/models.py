"""A whole random model: inputs, nodes, bodies, fragments, outputs, and what is declared of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from bodies import BODIES
from drawing import Draw, Feed, Undrawable, Value
from fragments import FRAGMENTS
from kernels import is_float, numpy_type
from onnx import TensorProto as T
from onnx import helper as h
from operations import MORE, table
from sizes import CASES, fixed, is_fixed

Feeds = dict[str, np.ndarray]
ASSIGNED = 4  # operators that a seed draws for certain


@dataclass
class Drawn:
    """A model with what to feed it with. `kinds` are the operators, `fragments` what was drawn to be fused."""

    model: onnx.ModelProto
    inputs: list[Feed]
    kinds: set[tuple[str, str]]
    fragments: list[str]
    seed: int

    def feeds(self) -> list[Feeds]:
        """One for each binding of the sizes, and one with special values."""
        rng = np.random.default_rng([self.seed, 7])
        plain = [feed(self.inputs, case, rng) for case in range(CASES)]
        return [*plain, feed(self.inputs, 0, rng, special=True)]

    @property
    def special(self) -> int:
        """The number of the feed with special values."""
        return CASES


def feed(inputs: list[Feed], case: int, rng: np.random.Generator, special: bool = False) -> Feeds:
    found = {}
    for f in inputs:
        shape = tuple(d[case] for d in f.value.dims)
        if f.optional is not None:
            if rng.random() < 0.5:
                found[f.value.name] = _changed(f.optional, rng)
            continue
        found[f.value.name] = _fed(f, shape, case, rng, special)
    return found


def _changed(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another value for an initializer that may be overridden; integers stay, they may be axes or sizes."""
    if array.dtype.kind in "iub":
        return array
    with np.errstate(all="ignore"):
        return np.asarray(array * np.asarray(rng.choice([0.5, 1.5]), array.dtype), array.dtype)


def _fed(f: Feed, shape: tuple[int, ...], case: int, rng: np.random.Generator, special: bool) -> np.ndarray:
    kind = numpy_type(f.value.dtype)
    if f.kind in ("mask", "additive"):
        keep = np.asarray(rng.random(shape) < 0.6)
        if shape:
            keep[..., 0] = True
        if f.kind == "mask":
            return keep.astype(kind)
        low = rng.choice([-np.inf, -1e4])
        return np.asarray(np.where(keep, rng.choice([0.0, 0.0, 0.5], shape), low), kind)
    if f.value.dtype == T.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if f.kind == "ids":
        return np.asarray(rng.integers(f.low, max(f.high[case], f.low + 1), shape)).astype(kind)
    if not is_float(f.value.dtype):
        array = np.asarray(rng.integers(f.low, 4, shape)).astype(kind)
        if special and array.size:
            ends = np.iinfo(kind)
            array.reshape(-1)[int(rng.integers(array.size))] = rng.choice([ends.min, ends.max])
        return array
    array = np.asarray(rng.normal(size=shape))
    if f.kind == "positive":
        array = np.abs(array) + 0.1
    if special and array.size:
        # a fraction of less is 0, and 0 * inf is NaN: what underflows on the way may differ
        values = [np.nan, np.inf, -np.inf, -0.0, 1e-38, -1e-40, 0.0, 1e30, -1e20, 6e4]
        for place in rng.integers(0, array.size, max(1, array.size // 8)):
            array.reshape(-1)[place] = rng.choice(values)
    with np.errstate(all="ignore"):
        return array.astype(kind)


def draw_model(seed: int, attempt: int = 0) -> Drawn:
    """The model of a seed; `attempt` gives another one with the same operators assigned."""
    draws = table()
    keys = sorted(draws)
    assigned = [keys[(seed * ASSIGNED + k) % len(keys)] for k in range(ASSIGNED)]
    d = Draw([seed, attempt])
    for key in assigned:
        while not d.has(key[1], key[0]) and d.opset < 25:
            d.opset += 1
    _inputs(d)
    waiting = list(assigned)
    for _ in range(int(d.rng.integers(6, 30))):
        with d.attempt():
            how = d.rng.random()
            if waiting and how < 0.4:
                draws[waiting[0]](d)
                del waiting[0]
            elif how < 0.55:
                name = d.one(*FRAGMENTS)
                FRAGMENTS[name](d)
                d.fragments.append(name)
            elif how < 0.9:
                draws[d.one(*keys)](d)
            elif how < 0.95:
                d.one(*MORE)(d)
            else:
                d.one(*BODIES)(d)
    for key in waiting:
        for _ in range(3):
            if key not in d.kinds:
                with d.attempt():
                    draws[key](d)
    return Drawn(_model(d), d.feeds, d.kinds, d.fragments, seed)


def _inputs(d: Draw) -> None:
    b, s, t, p = (d.sizes[k] for k in "bstp")
    kinds = [(b, s, fixed(8)), (b, s), (s, fixed(6)), (b, fixed(2), s, fixed(4)), (b, fixed(2), t, fixed(4)), ()]
    kinds += [(fixed(1), s), (b, fixed(1), p), (fixed(4),), (s,), (b, fixed(3), fixed(4))]
    for _ in range(d.one(1, 2, 2, 3, 4)):
        dtype = d.one(T.FLOAT, T.FLOAT, T.FLOAT, T.FLOAT16, T.DOUBLE, T.INT64, T.INT32, T.BOOL)
        dims = d.one(*kinds)
        if not is_float(dtype) and dims[:1] == (b,):
            dims = (d.sizes["B"], *dims[1:])
        d.input(dtype, dims)


def _declared(d: Draw, v: Value, how: str) -> onnx.ValueInfoProto:
    if how == "no shape":
        return h.make_tensor_value_info(v.name, v.dtype, None)
    names = {dim: name.lower() for name, dim in reversed(d.sizes.items())}
    dims = [n[0] if is_fixed(n) else names.get(n) if how == "full" else None for n in v.dims]
    return h.make_tensor_value_info(v.name, v.dtype, dims)


def _model(d: Draw) -> onnx.ModelProto:
    made = {o for node in d.top.nodes for o in node.output}
    values = [v for v in d.top.values if v.name in made and v.dtype != T.BFLOAT16]  # which numpy has not
    if not values:
        raise Undrawable("no nodes")
    used = {i for node in d.top.nodes for i in node.input}
    ends = [v for v in values if v.name not in used]
    outputs = [d.one(*ends) for _ in range(d.one(1, 2, 3))] if ends else []
    outputs += [d.one(*values) for _ in range(d.one(0, 1, 1, 2))]
    whole = [v for v in d.top.values if v.dtype != T.BFLOAT16]
    outputs += [d.one(*whole)] if d.chance(0.08) else []
    outputs = list(dict.fromkeys(outputs or [values[-1]]))
    stated = {f.value.name: _declared(d, f.value, d.declared.get(f.value.name, "full")) for f in d.feeds}
    infos = [_declared(d, v, d.one("full", "full", "full", "unnamed", "no shape")) for v in outputs]
    if d.chance(0.04):
        infos.append(_declared(d, outputs[0], d.one("full", "no shape")))
    inputs = list(stated.values())
    ir_version = d.one(8, 8, 9, 10, 10, 11) if d.functions else d.one(4, 6, 7, 8, 8, 9, 10, 10, 11)
    if not d.functions and len(list(graphs(graph_of_nodes(d)))) == 1 and d.chance(0.05):
        ir_version = 3
        listed = {i.name for i in inputs}
        rest = [v for t in d.top.initializers for v in d.top.values if v.name == t.name and t.name not in listed]
        inputs += [_declared(d, v, "full") for v in rest]
    inner = [_declared(d, v, "full") for v in values if v not in outputs and d.chance(0.3)] if d.chance(0.4) else []
    graph = h.make_graph(d.top.nodes, d.name("graph"), inputs, infos, d.top.initializers, value_info=inner)
    main = "ai.onnx" if d.chance(0.05) else ""
    imports = [h.make_opsetid(main, d.opset)]
    if any(n.domain == "com.microsoft" for g in graphs(graph) for n in g.node) or d.chance(0.1):
        imports.append(h.make_opsetid("com.microsoft", 1))
    if d.functions:
        imports.append(h.make_opsetid("local", 1))
        for f in d.functions:
            f.opset_import.append(h.make_opsetid("com.microsoft", 1))
    if d.chance(0.1):
        imports = imports[::-1]
    return h.make_model(graph, opset_imports=imports, functions=d.functions, ir_version=ir_version)


def graph_of_nodes(d: Draw) -> onnx.GraphProto:
    return h.make_graph(d.top.nodes, "nodes", [], [])


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from graphs(a.g)
