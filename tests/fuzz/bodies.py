"""Nodes with graphs inside, which use values from outside, and calls of local functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from drawing import Draw, Scope, Undrawable, Value
from fragments import FRAGMENTS
from kernels import is_float
from onnx import TensorProto as T
from onnx import helper as h
from operations import table
from sizes import Dims, fixed, is_fixed

SIMPLE = (
    "Neg Abs Tanh Sigmoid Identity Add Mul Sub Where Cast Transpose Unsqueeze Concat Slice Softmax ReduceMean MatMul"
    " Reshape Shape Gather Greater Not Split"
).split()


def steps(d: Draw, count: int) -> None:
    """Some nodes in the current scope."""
    draws = table()
    for _ in range(count):
        with d.attempt():
            if d.chance(0.15) and not d.scope.function:
                FRAGMENTS[d.one(*FRAGMENTS)](d)
            else:
                draws["", d.one(*SIMPLE)](d)


def made_here(d: Draw, dtype: int, dims: Dims) -> Value:
    """A value of this kind that a node of the current scope produces."""
    made = {o for n in d.scope.nodes for o in n.output}
    found = [v for v in d.scope.values if v.name in made and v.dtype == dtype and v.dims == dims]
    if found and d.chance(0.8):
        return found[-1] if d.chance(0.6) else d.one(*found)
    x = d.tensor(dtype, dims)
    return d.unary("Tanh" if is_float(dtype) and dtype != T.BFLOAT16 and d.chance(0.6) else "Identity", x)


def info(v: Value, d: Draw, shaped: bool = True) -> onnx.ValueInfoProto:
    if not shaped:
        return h.make_tensor_value_info(v.name, v.dtype, None)
    return h.make_tensor_value_info(v.name, v.dtype, [n[0] if is_fixed(n) else None for n in v.dims])


def graph_of(d: Draw, scope: Scope, inputs: list[Value], outputs: list[Value]) -> onnx.GraphProto:
    shaped = d.chance(0.5)
    loop = bool(inputs) and inputs[0].dims == () and inputs[0].name.startswith("i")  # its counter has a shape
    ins = [info(v, d, shaped or (loop and k < 2) or d.chance(0.5)) for k, v in enumerate(inputs)]
    outs = [info(v, d, shaped or d.chance(0.5)) for v in outputs]
    return h.make_graph(scope.nodes, d.name("g"), ins, outs, scope.initializers)


def condition(d: Draw) -> Value:
    how = d.one("input", "constant", "size", "sum")
    if how == "constant":
        return d.const(np.array(d.chance(0.5)))
    if how == "size":
        x = d.pick(lambda v: v.rank > 0)
        return d.binary(
            d.one("Less", "Greater") if d.opset >= 9 else "Equal", d.scalar_size(d.one(*x.dims)), d.const(np.int64(2))
        )
    if how == "sum":
        x = d.floating(types=(T.FLOAT,))
        total = d.make("ReduceSum", x, dims=(), keepdims=0)
        return d.binary("Greater", total, d.const(np.float32(0)))
    return d.input(T.BOOL, (), "bool")


def branch(d: Draw) -> list[Value]:
    """If: both branches make values of the same kinds."""
    like = [d.pick(lambda v: v.rank > 0) for _ in range(d.one(1, 1, 2))]
    chosen = condition(d)
    bodies = []
    for _ in range(2):
        with d.within(Scope(d.scope)) as scope:
            steps(d, d.one(1, 2, 4))
            outs = [made_here(d, v.dtype, v.dims) for v in like]
            outs = [o if o not in outs[:k] else d.unary("Identity", o) for k, o in enumerate(outs)]
            bodies.append(graph_of(d, scope, [], outs))
    kinds = [(v.dtype, v.dims) for v in like]
    return d.node("If", [chosen], kinds, then_branch=bodies[0], else_branch=bodies[1])


def loop(d: Draw) -> list[Value]:
    if d.opset < 11:
        raise Undrawable("an old Loop")
    carried = [d.pick(lambda v: v.rank > 0) for _ in range(d.one(1, 1, 2))]
    trip = d.one(1, 2, 3)
    early = d.chance(0.2)
    with d.within(Scope(d.scope)) as scope:
        count, going = Value(f"i{d.name()}", T.INT64, ()), Value(d.name("k"), T.BOOL, ())
        inner = [Value(d.name("l"), v.dtype, v.dims) for v in carried]
        scope.values += [count, going, *inner]
        steps(d, d.one(1, 3, 5))
        after = [made_here(d, v.dtype, v.dims) for v in inner]
        after = [o if o not in after[:k] else d.unary("Identity", o) for k, o in enumerate(after)]
        still = d.binary("Less", count, d.const(np.int64(1))) if early else d.unary("Identity", going)
        stacked = [] if early or d.chance(0.4) else [d.unary("Identity", d.one(*scope.values))]
        body = graph_of(d, scope, [count, going, *inner], [still, *after, *stacked])
    limit = d.const(np.int64(trip)) if stacked or d.chance(0.5) else d.input(T.INT64, (), "ids", 1, fixed(4))
    kinds = [(v.dtype, v.dims) for v in carried] + [(v.dtype, (fixed(trip), *v.dims)) for v in stacked]
    start = None if d.chance(0.4) and not early else d.const(np.array(True))
    return d.node("Loop", [limit, start, *carried], kinds, body=body)


def scan(d: Draw) -> list[Value]:
    if d.opset < 9:
        raise Undrawable("an old Scan")
    state, x = d.pick(lambda v: v.rank > 0), d.pick(lambda v: v.rank > 0)
    with d.within(Scope(d.scope)) as scope:
        inner = [Value(d.name("l"), state.dtype, state.dims), Value(d.name("l"), x.dtype, x.dims[1:])]
        scope.values += inner
        steps(d, d.one(1, 3))
        after = made_here(d, state.dtype, state.dims)
        stacked = d.unary("Identity", d.one(*scope.values))
        body = graph_of(d, scope, inner, [after, stacked])
    kinds = [(state.dtype, state.dims), (stacked.dtype, (x.dims[0], *stacked.dims))]
    return d.node("Scan", [state, x], kinds, body=body, num_scan_inputs=1)


def function(d: Draw) -> list[Value]:
    """Two calls of a new local function; it may be written in another opset than the model."""
    given = [d.pick(lambda v: v.dtype in (T.FLOAT, T.INT64)) for _ in range(d.one(1, 1, 2))]
    opset, count = d.opset, d._count
    if d.chance(0.25):
        d.opset = int(d.rng.integers(13, 22))
    if d.chance(0.5):
        d._count = 0  # names of values that the model has, too
    try:
        with d.within(Scope(function=True)) as scope:
            inner = [Value(d.name("v"), v.dtype, v.dims) for v in given]
            scope.values += inner
            steps(d, d.one(2, 4, 6))
            made = {o for n in scope.nodes for o in n.output}
            values = [v for v in scope.values if v.name in made]
            if not values:
                raise Undrawable("a function of nothing")
            outs = list(dict.fromkeys([values[-1], *(d.one(*values) for _ in range(d.one(0, 0, 1)))]))
            if d.chance(0.1):
                outs.append(inner[0])
            name = f"f{len(d.functions)}"
            imports = [h.make_opsetid("", d.opset), *([h.make_opsetid("local", 1)] if d.functions else [])]
            attributes, given_attributes = _referring(d, scope)
            proto = h.make_function(
                "local", name, [v.name for v in inner], [o.name for o in outs], scope.nodes, imports, attributes
            )
    finally:
        d.opset, d._count = opset, max(count, d._count)
    d.functions.append(proto)
    kinds = [(o.dtype, o.dims) for o in outs]
    found = d.node(name, given, kinds, "local", **given_attributes)
    others = [d.values(lambda v, like=g: (v.dtype, v.dims) == (like.dtype, like.dims)) for g in given]
    if d.chance(0.6):
        found += d.node(name, [d.one(*o) for o in others], kinds, "local", **given_attributes)
    return found


def _referring(d: Draw, scope: Scope) -> tuple[list[str], dict[str, Any]]:
    """At times an attribute of a node becomes one of the function."""
    places = [(n, a) for n in scope.nodes for a in n.attribute if a.type in (1, 2) and n.op_type != "Constant"]
    if not places or d.chance(0.6):
        return [], {}
    _, attribute = d.one(*places)
    value = h.get_attribute_value(attribute)
    name, kind = attribute.name, attribute.type
    attribute.Clear()
    attribute.name, attribute.type, attribute.ref_attr_name = name, kind, "outer"
    return ["outer"], {"outer": value}


BODIES = (branch, branch, loop, scan, function)
