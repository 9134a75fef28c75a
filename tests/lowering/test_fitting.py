"""Inputs get sizes that the inside of a model can take: windows slide over enough, tables match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.verify.feeds import make_feeds

Dims = Sequence[str | int | None] | None


class Graph:
    """A graph of one float input x and one output y, node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def node(self, op: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        to = to or f"v{len(self.nodes)}"
        self.nodes.append(h.make_node(op, inputs, [to], name=f"/{to}", **attributes))
        return to

    def constant(self, array: Any) -> str:
        self.weights.append(nh.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant((self._random.standard_normal(shape) * 0.3).astype(np.float32))

    def finish(self, dims: Dims) -> onnx.ModelProto:
        x, y = h.make_tensor_value_info("x", T.FLOAT, dims), h.make_tensor_value_info("y", T.FLOAT, None)
        graph = h.make_graph(self.nodes, "g", [x], [y], self.weights)
        return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def waveform(dims: Dims = ("batch", "time")) -> onnx.ModelProto:
    """As wav2vec2: windows of 10, 3, 3, 3 samples by steps of 5, 2, 2, 2; 80 samples are the least."""
    g = Graph()
    x, channels = g.node("Unsqueeze", "x", g.constant([1])), 1
    for size, step in ((10, 5), (3, 2), (3, 2), (3, 2)):
        x = g.node("Relu", g.node("Conv", x, g.weight(8, channels, size), strides=[step]))
        channels = 8
    g.node("MatMul", g.node("Transpose", x, perm=[0, 2, 1]), g.weight(8, 8), to="y")
    return g.finish(dims)


def spectrogram(time: int | str = "time", positions: int = 15) -> onnx.ModelProto:
    """As whisper: two convolutions, the second by steps of 2, and a table of positions of one length."""
    g = Graph()
    x = g.node("Relu", g.node("Conv", "x", g.weight(8, 4, 3), pads=[1, 1]))
    x = g.node("Conv", x, g.weight(8, 8, 3), pads=[1, 1], strides=[2])
    x = g.node("Add", g.node("Transpose", x, perm=[0, 2, 1]), g.weight(positions, 8))
    g.node("Reshape", x, g.constant([-1, positions * 8]), to="y")
    return g.finish(["batch", 4, time])


def patches(dims: Dims = ("batch", "channels", "h", "w"), last: bool = False, table: int = 4) -> onnx.ModelProto:
    """As vision transformers: patches of 8 by 8 pixels, and a table with a position for each."""
    g = Graph()
    x = g.node("Transpose", "x", perm=[0, 3, 1, 2]) if last else "x"
    x = g.node("Conv", x, g.weight(8, 3, 8, 8), strides=[8, 8])
    x = g.node("Transpose", g.node("Reshape", x, g.constant([0, 8, -1])), perm=[0, 2, 1])
    x = g.node("Add", x, g.weight(1, table, 8)) if table else x
    g.node("MatMul", x, g.weight(8, 8), to="y")
    return g.finish(dims)


def pooled() -> onnx.ModelProto:
    g = Graph()
    x, channels = "x", 3
    for _ in range(4):
        x = g.node("MaxPool", g.node("Conv", x, g.weight(4, channels, 3, 3)), kernel_shape=[2, 2], strides=[2, 2])
        channels = 4
    g.node("GlobalAveragePool", x, to="y")
    return g.finish([None, 3, None, None])


def unknown_rank() -> onnx.ModelProto:
    g = Graph()
    g.node("Tanh", g.node("Conv", "x", g.weight(8, 1, 40)), to="y")
    return g.finish(None)


def framed() -> onnx.ModelProto:
    g = Graph()
    g.node("MatMul", g.node("Reshape", "x", g.constant([0, -1, 160])), g.weight(160, 8), to="y")
    return g.finish(["batch", "samples"])


def cut() -> onnx.ModelProto:
    """Nothing is left of 30 samples or fewer."""
    g = Graph()
    x = g.node("Slice", "x", g.constant([0]), g.constant([-30]), g.constant([1]))
    g.node("ReduceMax", x, to="y", axes=[1])
    return g.finish(["batch", "samples"])


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "waveform": waveform,
    "waveform, unnamed": lambda: waveform((None, None)),
    "waveform, fixed": lambda: waveform((1, 400)),
    "spectrogram": spectrogram,
    "spectrogram, fixed": lambda: spectrogram(30),
    "spectrogram, long": lambda: spectrogram(positions=1500),
    "patches": patches,
    "patches, channels last": lambda: patches(("b", "h", "w", "c"), last=True),
    "patches, no table": lambda: patches(table=0),
    "patches, fixed": lambda: patches((2, 3, 16, 16)),
    "patches, large table": lambda: patches(table=196),
    "pooled": pooled,
    "unknown rank": unknown_rank,
    "framed": framed,
    "cut": cut,
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_sizes_fit_the_inside(make: Callable[[], onnx.ModelProto]) -> None:
    report = saturate_and_extract(make(), verify=True).report
    assert report.verified, report.verification


def test_lengths_differ_and_are_no_longer_than_needed() -> None:
    times = [feed.dims["time"] for feed in make_feeds(waveform())]
    assert min(times) == 80
    assert len(set(times)) > 2
    assert max(times) < 1000


def test_sizes_that_fit_anyway_stay() -> None:
    g = Graph()
    g.node("MatMul", "x", g.weight(8, 8), to="y")
    assert {1, 5, 16} <= {feed.dims["seq"] for feed in make_feeds(g.finish(["batch", "seq", 8]))}


def test_a_size_of_one_beside_a_table_stays() -> None:
    g = Graph()
    g.node("Add", g.node("Tanh", "x"), g.weight(6, 8), to="y")
    assert {feed.dims["seq"] for feed in make_feeds(g.finish(["batch", "seq", 8]))} == {1, 6}


# ---- sizes of the caller's


def said(model: onnx.ModelProto, **dims: int | list[int]) -> tuple[bool | None, str]:
    report = saturate_and_extract(model, dims=dims, verify=True).report
    return report.verified, report.verification


def test_large_sizes_are_compared_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx_egraph.lowering.verify import verify

    fed: list[tuple[int, ...]] = []
    plain = verify._Asking.refusal

    def spied(self: Any, feed: Any) -> str:
        fed.append(feed.inputs["x"].shape)
        return plain(self, feed)

    monkeypatch.setattr(verify._Asking, "refusal", spied)
    verified, text = said(waveform(), time=[3000, 16000])
    assert verified
    assert {3000, 16000} <= {shape[1] for shape in fed}
    assert "not compared at" not in text


def test_sizes_that_cannot_be_compared_at_are_named() -> None:
    verified, text = said(waveform(), time=2**34)
    assert verified
    assert f"not compared at batch=1, time={2**34}: 64.0 GiB of inputs are too many" in text
    verified, text = said(waveform(), time=16)  # fewer than a window
    assert verified
    assert "not compared at batch=2, time=16: node '/v3' (Conv): " in text


def test_the_model_runs_at_no_other_size_than_the_caller_s() -> None:
    """The length is told by a table that nothing ties to it before a run."""
    g = Graph()
    rows = g.node("Expand", g.weight(1, 8), g.node("Abs", g.constant([3000, 1])))
    g.node("Tanh", g.node("Add", "x", rows), to="y")
    verified, text = said(g.finish(["time", 8]), time=3000)
    assert verified, text


def test_a_cache_has_the_heads_and_the_size_of_the_new_keys() -> None:
    """Its size has a name in which "cache" stands, as onnxruntime-genai writes it."""
    cache = "float[batch_size, kv_heads, past_sequence_length, kv_cache_dim]"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[batch_size, sequence_length, 64] x, int64[batch_size, total_sequence_length] attention_mask,
           {cache} past_key, {cache} past_value) => (float[batch_size, sequence_length, 64] y, float present_key,
           float present_value) <float[64, 32] keys, float[64, 32] values, float[batch_size, sequence_length, 32] k,
           int64[1] one = {{1}}, int64 last = {{1}}> {{
            k = MatMul (x, keys) v = MatMul (x, values)
            length = ReduceSum <keepdims = 0> (attention_mask, one) shorter = Sub (length, one)
            lengths = Cast <to = 6> (shorter) sizes = Shape (attention_mask) size = Gather (sizes, last)
            total = Cast <to = 6> (size)
            z, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
                (x, k, v, past_key, past_value, lengths, total)
            minus = Neg (z) y = Neg (minus)
        }}""")
    random = np.random.default_rng(0)
    model.graph.initializer.extend(
        nh.from_array((random.standard_normal((64, 32)) * 0.1).astype(np.float32), name) for name in ("keys", "values")
    )
    for value in model.graph.value_info[:]:
        if value.name != "k":
            model.graph.value_info.remove(value)
    verified, text = said(model)
    assert verified, text
    assert {feed.inputs["past_key"].shape[1::2] for feed in make_feeds(model)} == {(2, 16)}
