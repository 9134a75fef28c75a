"""Cache, new tokens and the mask over both: feeds fit them together, whichever of the three is fixed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.verify.feeds import Feed, make_feeds
from onnx_egraph.lowering.verify.verify import verify

EXPORT = Path(__file__).parents[1] / "models" / "exports" / "qwen3_past_ts_sdpa.onnx"


def decoder(
    past: str | int, new: str | int, total: str | int, *, rank: int = 2, encoder: bool = False
) -> onnx.ModelProto:
    """Keys of past and new tokens side by side, weighted by a masked softmax."""
    mask = ["b", total] if rank == 2 else ["b", 1, new, total]
    ins = [
        h.make_tensor_value_info("input_ids", T.INT64, ["b", new]),
        h.make_tensor_value_info("attention_mask", T.INT64, mask),
        h.make_tensor_value_info("past_key", T.FLOAT, ["b", past, 4]),
    ]
    rows = h.make_node("Identity", ["attention_mask"], ["m0"])
    if rank == 4:
        rows = h.make_node("ReduceMin", ["attention_mask", "inner"], ["m0"], keepdims=0)
    nodes = [
        h.make_node("Gather", ["emb", "input_ids"], ["x"]),
        h.make_node("Concat", ["past_key", "x"], ["k"], axis=1),
        h.make_node("ReduceMean", ["k", "last"], ["s0"], keepdims=0),
        h.make_node("Unsqueeze", ["s0", "one"], ["s"]),
        rows,
        h.make_node("Unsqueeze", ["m0", "one"], ["m1"]),
        h.make_node("Cast", ["m1"], ["m"], to=T.BOOL),
        h.make_node("Where", ["m", "s", "low"], ["w"]),
        h.make_node("Softmax", ["w"], ["p"], axis=-1),
        h.make_node("MatMul", ["p", "k"], ["o"]),
        h.make_node("Add", ["x", "o"], ["y"]),
    ]
    if encoder:
        ins.append(h.make_tensor_value_info("encoder_attention_mask", T.INT64, ["b", "enc"]))
        nodes.append(h.make_node("Identity", ["encoder_attention_mask"], ["z"]))
    weights = {
        "emb": np.random.default_rng(0).standard_normal((11, 4)).astype(np.float32), "last": np.array([-1]),
        "one": np.array([1]), "inner": np.array([1, 2]), "low": np.float32(-1e9),
    }  # fmt: skip
    used = {i for node in nodes for i in node.input}
    inits = [nh.from_array(np.asarray(a), n) for n, a in weights.items() if n in used]
    outs = [h.make_tensor_value_info("y", T.FLOAT, ["b", new, 4]), h.make_tensor_value_info("k", T.FLOAT, None)]
    outs += [h.make_tensor_value_info("z", T.INT64, ["b", "enc"])] if encoder else []
    graph = h.make_graph(nodes, "g", ins, outs, inits)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10)


def lengths(feed: Feed) -> tuple[int, int, int]:
    past, ids, mask = (feed.inputs[n] for n in ("past_key", "input_ids", "attention_mask"))
    return past.shape[1], ids.shape[1], mask.shape[-1]


CASES: dict[str, tuple[str | int, str | int, str | int]] = {
    "all free": ("past", "seq", "total"),
    "a sum": ("past", "seq", "past + seq"),
    "one new token": ("past", 1, "total"),
    "one new token, in a sum": ("past", 1, "past + seq"),
    "four new tokens": ("past", 4, "total"),
    "a cache of six": (6, "seq", "total"),
    "a cache of six, in a sum": (6, "seq", "past + seq"),
    "cache and tokens fixed, their sum not": (6, 2, "past + seq"),
    "only the mask is free": (6, 1, "total"),
    "a mask of eight": ("past", "seq", 8),
    "a mask of eight for one token": ("past", 1, 8),
    "a mask of eight, six of them cached": (6, "seq", 8),
    "all fixed": (6, 2, 8),
}


@pytest.mark.parametrize("encoder", [False, True])
@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_the_three_lengths_fit(sizes: tuple[str | int, str | int, str | int], rank: int, encoder: bool) -> None:
    made = decoder(*sizes, rank=rank, encoder=encoder)
    feeds = make_feeds(made)
    assert feeds
    for feed in feeds:
        past, new, total = lengths(feed)
        assert past + new == total, feed.name
    if sizes[0] == "past" and sizes[2] != 8:
        assert len({lengths(f)[0] for f in feeds}) > 2
    if sizes[1] == "seq" and sizes[2] != 8:
        assert len({lengths(f)[1] for f in feeds}) > 2
    result = verify(made, made)
    assert result.ok
    assert not result.dropped


def test_a_mask_over_new_tokens_alone_keeps_their_length() -> None:
    for feed in make_feeds(decoder("past", "seq", "seq")):
        assert feed.inputs["attention_mask"].shape[1] == feed.inputs["input_ids"].shape[1]
    for feed in make_feeds(decoder("past", 3, 3)):
        assert feed.inputs["attention_mask"].shape[1] == 3


def test_sizes_a_caller_fixes_go_first() -> None:
    for dims in ({"total": 9}, {"past": 4}, {"past": 4, "seq": 2}, {"total": [5, 9], "seq": 1}):
        for feed in make_feeds(decoder("past", "seq", "total"), dims=dims):
            past, new, total = lengths(feed)
            assert past + new == total
            assert all(feed.dims[k] in (v if isinstance(v, list) else [v]) for k, v in dims.items())


@pytest.mark.parametrize("rank", [2, 4])
def test_a_row_that_sees_no_key_may_hold_any_finite_value(rank: int) -> None:
    """One new token leaves no declared dim that could name the padding."""
    made, other = (decoder("past", 1, "total", rank=rank) for _ in range(2))
    for model, scale in ((made, 0.0), (other, 1.0)):  # hidden scores are all the same, or added to the mask
        where = next(n for n in model.graph.node if n.op_type == "Where")
        where.input[2] = "hidden"
        at = list(model.graph.node).index(where)
        model.graph.node.insert(at, h.make_node("Add", ["s_scaled", "low"], ["hidden"]))
        model.graph.node.insert(at, h.make_node("Mul", ["s", "scale"], ["s_scaled"]))
        model.graph.initializer.append(nh.from_array(np.float32(scale), "scale"))
    for model in (made, other):
        low = next(t for t in model.graph.initializer if t.name == "low")
        low.CopyFrom(nh.from_array(np.float32(-1e4), "low"))
    found = verify(made, other)
    assert found.ok, found.mismatches
    strict = verify(made, other, strict=True)
    assert not strict.ok
    assert all("row empty" in m.feed for m in strict.mismatches)


def test_an_export_with_one_new_token_is_verified() -> None:
    model = onnx.load(EXPORT)
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "seq":
                dim.dim_value = 1
    report = saturate_and_extract(model, verify=True).report
    assert report.verified
    assert re.match(r"\d+ runs agree", report.verification)
