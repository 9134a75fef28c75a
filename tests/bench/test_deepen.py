"""Deepened models: valid, finite, distinct layers, and each copied layer computes what layer 1 computes."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "qwen3_2layers.onnx"
SIZES = [(1, 1), (2, 7), (3, 33)]

# A real TorchScript export of Qwen3 with 28 layers (transformers 5.24, attention "sdpa"; counted after
# export). The example uses attention "eager", whose layers have some 20 nodes less.
REAL_28_LAYERS = 7723


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import deepen

    return deepen


@pytest.fixture(scope="module")
def example() -> onnx.ModelProto:
    return onnx.load(EXAMPLE)


def run(model: onnx.ModelProto, feeds: dict[str, NDArray[Any]], *, plain: bool = False) -> list[NDArray[Any]]:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    if plain:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def tokens(batch: int, seq: int) -> dict[str, NDArray[Any]]:
    ids = np.random.default_rng(0).integers(0, 128, (batch, seq))
    return {"input_ids": ids, "attention_mask": np.ones((batch, seq), np.int64)}


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def weights(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("layers", [1, 2, 3, 28])
def test_runs_and_is_finite(bench: Any, example: onnx.ModelProto, layers: int) -> None:
    model = bench.deepen(example, layers)
    onnx.checker.check_model(model, full_check=True)
    named = {int(found) for node in model.graph.node for found in re.findall(r"layers\.(\d+)/", node.name)}
    assert named == set(range(layers))
    for batch, seq in SIZES:
        (logits,) = run(model, tokens(batch, seq))
        assert logits.shape == (batch, seq, 128)
        assert np.isfinite(logits).all()
        assert logits.std() > 0.01


def test_own_depth_changes_nothing(bench: Any, example: onnx.ModelProto) -> None:
    same = bench.deepen(example, 2)
    assert kinds(same) == kinds(example)
    assert weights(same).keys() == weights(example).keys()
    for batch, seq in SIZES:
        feeds = tokens(batch, seq)
        np.testing.assert_array_equal(run(same, feeds)[0], run(example, feeds)[0])


def test_every_layer_adds_the_same_nodes(bench: Any, example: onnx.ModelProto) -> None:
    two, three, nine = (kinds(bench.deepen(example, layers)) for layers in (2, 3, 9))
    layer = three - two
    assert nine == two + Counter({kind: 7 * count for kind, count in layer.items()})
    assert [layer[kind] for kind in ("Softmax", "Sigmoid", "Neg", "Cos")] == [1, 1, 2, 0]


def test_28_layers_are_near_a_real_export(bench: Any, example: onnx.ModelProto) -> None:
    count = len(bench.deepen(example, 28).graph.node)
    assert abs(count - REAL_28_LAYERS) <= 0.1 * REAL_28_LAYERS


def test_a_copied_layer_computes_what_layer_1_computes(bench: Any, example: onnx.ModelProto) -> None:
    """Layer 1 cut out of the export and fed with its own result gives, bit by bit, what layer 2 gives."""
    carry = bench.find_layers(example.graph).carry
    model = bench.deepen(example, 3, spread=0.0)
    deeper = bench.find_layers(model.graph).carry
    layer_nodes = [node for node in example.graph.node if "layers.1/" in node.name]
    made = {name for node in example.graph.node for name in node.output}
    inside = {name for node in layer_nodes for name in node.output}
    constants = {name for node in example.graph.node if node.op_type == "Constant" for name in node.output}
    entries = sorted(
        {name for node in layer_nodes for name in node.input if name in made} - inside - constants - {carry[0]}
    )
    for value in [*entries, *deeper[:-1], deeper[-1]]:
        if value not in {output.name for output in model.graph.output}:
            model.graph.output.append(helper.make_empty_tensor_value_info(value))

    block = onnx.ModelProto()
    block.CopyFrom(example)
    block.graph.ClearField("node")
    block.graph.ClearField("input")
    block.graph.ClearField("output")
    block.graph.node.extend(n for n in example.graph.node if n in layer_nodes or n.op_type == "Constant")
    block.graph.output.append(helper.make_empty_tensor_value_info(carry[1]))

    for batch, seq in SIZES:
        results = run(model, tokens(batch, seq), plain=True)
        values = dict(zip((output.name for output in model.graph.output), results, strict=True))
        feeds = {name: values[name] for name in entries} | {carry[0]: values[deeper[1]]}
        del block.graph.input[:]
        block.graph.input.extend(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        )
        (expected,) = run(block, feeds, plain=True)
        np.testing.assert_array_equal(values[deeper[2]], expected)
        assert not np.array_equal(expected, values[deeper[1]])


def test_copies_have_weights_of_their_own(bench: Any, example: onnx.ModelProto) -> None:
    model = bench.deepen(example, 5)
    arrays = weights(model)
    assert len(arrays) == len(model.graph.initializer)
    readers = Counter(name for node in model.graph.node for name in set(node.input) if name in arrays)
    assert readers.keys() == arrays.keys()
    per_layer: dict[str, list[str]] = {}
    for node in model.graph.node:
        if found := re.search(r"layers\.(\d+)/(.*)", node.name):
            for name in node.input:
                if name in arrays:
                    per_layer.setdefault(found.group(2), []).append(name)
    assert len(per_layer) == 4 + 7  # four norms; q, k, v, o, gate, up, down
    for names in per_layer.values():
        assert len(set(names)) == 5
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                if {first, second} & set(arrays) - set(weights(example)):
                    assert (arrays[first] != arrays[second]).mean() > 0.9
        source = arrays[names[1]]
        for name in names[2:]:
            assert (arrays[name].shape, arrays[name].dtype) == (source.shape, source.dtype)
            eps = np.finfo(source.dtype).eps
            assert (np.abs(arrays[name] - source) <= np.abs(source) * (2.0**-6 + eps)).all()


def test_names_are_unique_and_follow_the_layer(bench: Any, example: onnx.ModelProto) -> None:
    model = bench.deepen(example, 6)
    nodes = [node.name for node in model.graph.node]
    values = [name for node in model.graph.node for name in node.output]
    assert len(set(nodes)) == len(nodes)
    assert len(set(values)) == len(values)
    for suffix in ("self_attn/Softmax", "mlp/down_proj/MatMul"):
        assert [f"/model/model/layers.{k}/{suffix}" in nodes for k in range(7)] == [True] * 6 + [False]


def test_same_bytes_every_time(bench: Any, example: onnx.ModelProto) -> None:
    before = example.SerializeToString(deterministic=True)
    first, second = (bench.deepen(source, 4) for source in (example, EXAMPLE))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    assert example.SerializeToString(deterministic=True) == before


def test_cut_and_grown_again_has_the_same_shape(bench: Any, example: onnx.ModelProto) -> None:
    deep = bench.deepen(example, 9)
    again = bench.deepen(bench.deepen(deep, 2), 9)
    assert kinds(again) == kinds(deep)
    feeds = tokens(2, 7)
    np.testing.assert_array_equal(run(bench.deepen(deep, 2), feeds)[0], run(example, feeds)[0])
    np.testing.assert_array_equal(run(again, feeds)[0], run(deep, feeds)[0])


def tiny(leak: bool = False, layers: int = 2) -> onnx.ModelProto:
    """layers of x -> x + w_k; with `leak` each layer also hands on a second value."""
    nodes, outputs, last = [], [], "x"
    for k in range(layers):
        nodes.append(helper.make_node("Add", [last, f"w{k}"], [f"/layers.{k}/y"], f"/layers.{k}/Add"))
        last = f"/layers.{k}/y"
        if leak:
            nodes.append(helper.make_node("Neg", [last], [f"/layers.{k}/cache"], f"/layers.{k}/Neg"))
            outputs.append(f"/layers.{k}/cache")
    nodes.append(helper.make_node("Relu", [last], ["out"], "/Relu"))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ["x", "out", *outputs]]
    arrays = [numpy_helper.from_array(np.full(2, k + 1, np.float32), f"w{k}") for k in range(layers)]
    graph = helper.make_graph(nodes, "tiny", values[:1], values[1:], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("layers", "total"), [(1, 1), (2, 3), (3, 5), (6, 11)])
def test_sum_of_layers(bench: Any, layers: int, total: int) -> None:
    (out,) = run(bench.deepen(tiny(), layers, spread=0.0), {"x": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(out, np.full(2, total, np.float32))


def test_refuses(bench: Any) -> None:
    with pytest.raises(ValueError, match="hands on"):
        bench.deepen(tiny(leak=True), 3)
    with pytest.raises(ValueError, match="found layers"):
        bench.deepen(tiny(layers=1), 3)
    with pytest.raises(ValueError, match="at least one layer"):
        bench.deepen(tiny(), 0)
    gap = tiny(layers=3)
    del gap.graph.node[1]
    with pytest.raises(ValueError, match="found layers"):
        bench.deepen(gap, 3)


@pytest.mark.parametrize("script", sorted(path.stem for path in (ROOT / "bench").glob("*.py")))
def test_scripts_import(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    module = __import__(script)
    assert callable(module.measure if script == "fresh" else module.main)
