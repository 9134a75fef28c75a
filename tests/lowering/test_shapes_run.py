"""Symbolic facts against what onnxruntime computes, over random graphs of shape arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnx_egraph.lowering.shapes.inference import infer

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def const(name: str, values: object) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def single(proto: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What onnxruntime computes for one node, None where it refuses or would crash or exhaust the memory."""
    last = next(reversed(feeds.values())) if feeds else np.zeros(1)
    if proto.op_type in ("Div", "Mod") and not np.all(last):
        return None
    grows = proto.op_type in ("ConstantOfShape", "Expand", "Tile", "Range", "Reshape")
    if grows and any(np.abs(each, dtype=np.float64).max(initial=0) > 64 for each in feeds.values()):
        return None
    graph = helper.make_graph(
        [proto],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim)
            for n, v in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in proto.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return [np.asarray(result) for result in session.run(None, feeds)]
    except Exception:  # its exceptions have no common base
        return None


# the leading axis of the integer input differs from the float inputs' axis of the same name in some, 0
# occurs, 1 too
WORLDS = [
    {"a": 2, "b": 3, "c": 1, "d": 6, "a@ids": 2},
    {"a": 1, "b": 5, "c": 4, "d": 2, "a@ids": 3},
    {"a": 4, "b": 1, "c": 7, "d": 1, "a@ids": 1},
    {"a": 3, "b": 0, "c": 2, "d": 3, "a@ids": 3},
]
INPUTS: dict[str, tuple[int, list[int | str]]] = {
    "x": (FLOAT, ["a", "b", 4]),
    "y": (FLOAT, ["b", "c"]),
    "z": (FLOAT, ["a", 1, "d"]),
    "ids": (INT64, ["a", "d"]),
}
CONSTANTS = {
    f"c{i}": const(f"c{i}", v) for i, v in enumerate((-1, 0, 1, 2, 3, [0], [1], [2], [-1], [0, 1], [2**63 - 1], [3]))
}


def model_of(nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, dtype, dims) for name, (dtype, dims) in INPUTS.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        list(CONSTANTS.values()),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def guess(rng: np.random.Generator, ints: list[str], floats: list[str], name: str) -> onnx.NodeProto:
    """A random node; many are ill-formed and dropped by the caller."""

    def i() -> str:
        return str(rng.choice(ints + list(CONSTANTS)))

    def f() -> str:
        return str(rng.choice(floats))

    axis = int(rng.integers(-2, 3))
    kinds: list[Callable[[], onnx.NodeProto]] = [
        lambda: node("Shape", f(), name),
        lambda: node("Shape", f(), name, start=axis),
        lambda: node("Size", f(), name),
        *(lambda op=op: node(op, f"{i()} {i()}", name) for op in "Add Sub Mul Div Mod Max Min".split()),
        *(lambda op=op: node(op, f"{i()} {i()}", name) for op in "Equal Less Greater LessOrEqual".split()),
        lambda: node("Neg", i(), name),
        lambda: node("Cast", i(), name, to=int(rng.choice([TensorProto.INT32, TensorProto.INT8, BOOL, FLOAT]))),
        lambda: node("Cast", i(), name, to=INT64),
        lambda: node("Gather", f"{i()} {i()}", name, axis=0),
        lambda: node("Concat", f"{i()} {i()} {i()}", name, axis=0),
        lambda: node("Concat", f"{i()} {i()}", name, axis=0),
        lambda: node("Squeeze", f"{i()} c5", name),
        lambda: node("Unsqueeze", f"{i()} c5", name),
        lambda: node("Slice", f"{i()} {i()} {i()}", name),
        lambda: node("Slice", f"{i()} c8 {i()} c5 c8", name),
        lambda: node("Where", f"{i()} {i()} {i()}", name),
        lambda: node("ReduceProd", i(), name, keepdims=int(rng.integers(2))),
        lambda: node("ReduceSum", i(), name, keepdims=int(rng.integers(2))),
        lambda: node("ReduceMax", i(), name, keepdims=0),
        lambda: node("Range", f"c1 {i()} {i()}", name),
        lambda: node("Range", f"{i()} {i()} c2", name),
        lambda: node("ConstantOfShape", i(), name, value=const("", [int(rng.integers(-1, 2))])),
        lambda: node("Reshape", f"{i()} {i()}", name),
        lambda: node("Reshape", f"{f()} {i()}", name),
        lambda: node("Expand", f"{f()} {i()}", name),
        lambda: node("Expand", f"{i()} {i()}", name),
        lambda: node("Slice", f"{f()} {i()} {i()}", name),
        lambda: node("Slice", f"{f()} {i()} {i()} {i()} {i()}", name),
        lambda: node("Unsqueeze", f"{f()} {i()}", name),
        lambda: node("Squeeze", f"{f()} {i()}", name),
        lambda: node("Add", f"{f()} {f()}", name),
        lambda: node("MatMul", f"{f()} {f()}", name),
        lambda: node("Flatten", f(), name, axis=axis),
        lambda: node("Transpose", f(), name),
        lambda: node("Tile", f"{f()} {i()}", name),
        lambda: node("Split", f(), f"{name} {name}b", axis=axis, num_outputs=2),
        lambda: node("ReduceMean", f"{f()} {i()}", name, keepdims=int(rng.integers(2))),
        lambda: node("Gather", f"{f()} {i()}", name, axis=axis),
    ]
    return kinds[int(rng.integers(len(kinds)))]()


@pytest.mark.parametrize("seed", range(40))
def test_facts_hold_in_onnxruntime(seed: int) -> None:
    rng = np.random.default_rng(seed)
    worlds: list[dict[str, np.ndarray]] = []
    for sizes in WORLDS:
        values = {name: onnx.numpy_helper.to_array(proto) for name, proto in CONSTANTS.items()}
        for name, (dtype, dims) in INPUTS.items():
            own = [
                sizes["a@ids"] if name == "ids" and d == "a" else sizes[d] if isinstance(d, str) else d for d in dims
            ]
            values[name] = rng.integers(0, 3, own) if dtype == INT64 else np.ones(own, np.float32)
        worlds.append(values)
    nodes: list[onnx.NodeProto] = []
    for step in range(60):
        pool = worlds[0]
        ints = [name for name in pool if pool[name].dtype != np.float32 and name not in CONSTANTS]
        floats = [name for name in pool if pool[name].dtype == np.float32]
        proto = guess(rng, ints, floats, f"v{step}")
        results = []
        for values in worlds:
            result = single(proto, {name: values[name] for name in dict.fromkeys(proto.input)})
            if result is None or any(each.size > 4096 or each.ndim > 6 for each in result):
                break
            results.append(result)
        else:
            nodes.append(proto)
            for values, result in zip(worlds, results, strict=True):
                values.update(zip(proto.output, result, strict=True))
    names = [name for proto in nodes for name in proto.output]
    model = ir.from_proto(model_of(nodes, names))
    shapes = infer(model)
    found = {value.name: value for each in model.graph for value in each.outputs}
    found |= {value.name: value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    for sizes, values in zip(WORLDS, worlds, strict=True):
        known = {s: values[str(v.name)].shape[axis] for s, (v, axis) in shapes.sources.items()}
        for name in [*INPUTS, *CONSTANTS, *names]:
            facts, actual = shapes.of(found[name]), values[name]
            where = f"seed {seed}: {name} in {sizes}: {facts} against {actual.shape} {actual!r}"
            if facts.dtype is not None:
                assert facts.dtype.numpy() == actual.dtype, where
            claims: list[tuple[int | str, int]] = []
            if facts.dims is not None:
                assert len(facts.dims) == actual.ndim, where
                claims += zip(facts.dims, actual.shape, strict=True)
            if facts.elems is not None:
                assert len(facts.elems) == actual.size, where
                claims += zip(facts.elems, map(int, actual.ravel()), strict=True)
            for claim, number in claims:
                if isinstance(claim, str) and claim.startswith("?") and claim[1:].isdigit():
                    # a symbol of its own has one value everywhere
                    assert known.setdefault(claim, number) == number, where
                elif isinstance(claim, int) or shapes.symbols(claim) <= known.keys():
                    assert shapes.evaluate(claim, known) == number, where


@pytest.mark.parametrize("seed", range(20))
def test_ill_formed_nodes_do_not_stop_inference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ints, floats = ["ids"], ["x", "y", "z"]
    nodes = []
    for step in range(60):
        nodes.append(guess(rng, ints, floats, f"v{step}"))
        (ints if rng.integers(2) else floats).append(f"v{step}")
    model = ir.from_proto(model_of(nodes, [f"v{step}" for step in range(60)]))
    shapes = infer(model)
    assert all(shapes.of(value) is not None for each in model.graph for value in each.outputs)
