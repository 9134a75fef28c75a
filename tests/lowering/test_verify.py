"""Verification must accept what is equal up to rounding and reject every kind of wrong model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph.egraph.errors import ModelError
from onnx_egraph.lowering.verify.feeds import Feed, make_feeds
from onnx_egraph.lowering.verify.verify import Mismatch, verify

Io = tuple[str, int, Sequence[str | int | None] | None]
Weights = Mapping[str, Any]  # arrays and numpy scalars


def model(
    nodes: list[onnx.NodeProto], ins: list[Io], outs: list[Io], weights: Weights | None = None
) -> onnx.ModelProto:
    inits = [nh.from_array(np.asarray(a), name) for name, a in (weights or {}).items()]
    made_in, made_out = ([h.make_tensor_value_info(*io) for io in side] for side in (ins, outs))
    graph = h.make_graph(nodes, "g", made_in, made_out, inits)
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)])
    made.ir_version = 10
    return made


def n(op: str, ins: str, outs: str, **attributes: Any) -> onnx.NodeProto:
    return h.make_node(op, ins.split(), outs.split(), **attributes)


def normal(*shape: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X: Io = ("x", T.FLOAT, ["batch", "seq", 8])
Y: Io = ("y", T.FLOAT, ["batch", "seq", 8])
BIAS = {"b": normal(8)}


def kinds(found: Sequence[Mismatch]) -> set[str]:
    return {m.kind for m in found}


def add(op: str = "Add", ins: str = "x b") -> onnx.ModelProto:
    return model([n(op, ins, "y")], [X], [Y], BIAS)


# ---- models that are right


def test_a_model_equals_itself() -> None:
    result = verify(add(), add())
    assert result.ok
    assert not result.mismatches
    assert not result.skipped
    assert result.runs >= 8
    assert result.max_abs == 0.0


def linear(order: str) -> onnx.ModelProto:
    """(x*w1 + x*w2) summed over 512 elements, in two orders."""
    a, c = normal(512, 64), normal(512, 64, seed=2)
    io: tuple[list[Io], list[Io]] = [("x", T.FLOAT, ["batch", 512])], [("y", T.FLOAT, ["batch", 64])]
    if order == "merged":
        return model([n("MatMul", "x ac", "y")], *io, {"ac": a + c})
    nodes = [n("MatMul", "x a", "p"), n("MatMul", "x c", "q"), n("Add", "p q", "y")]
    return model(nodes, *io, {"a": a, "c": c})


def test_reassociation_passes() -> None:
    result = verify(linear("apart"), linear("merged"))
    assert result.ok, result.mismatches
    assert result.max_abs > 0  # they do differ, by rounding


def chain(dtype: int, factor: float = 1.0, *, split: bool) -> onnx.ModelProto:
    """x @ w * 3, or (x @ (w * 1.5)) * 2: equal but for rounding."""
    kind = np.float16 if dtype == T.FLOAT16 else np.float32
    w = (normal(64, 32) / 8).astype(kind)
    weights = {"w": w, "s": np.array(3 * factor, kind)}
    if split:
        weights = {"w": w * np.array(1.5, kind), "s": np.array(2 * factor, kind)}
    nodes = [n("MatMul", "x w", "p"), n("Mul", "p s", "y")]
    return model(nodes, [("x", dtype, ["batch", 64])], [("y", dtype, ["batch", 32])], weights)


@pytest.mark.parametrize("dtype", [T.FLOAT, T.FLOAT16])
def test_rounding_of_the_dtype_passes_and_a_real_error_fails(dtype: int) -> None:
    eps = float(np.finfo(np.float16 if dtype == T.FLOAT16 else np.float32).eps)
    good = verify(chain(dtype, split=False), chain(dtype, split=True))
    assert good.ok, good.mismatches
    assert good.max_abs > 0
    bad = verify(chain(dtype, split=False), chain(dtype, 1 + 64 * eps, split=True))
    assert kinds(bad.mismatches) == {"value"}
    assert all(m.max_abs > m.tolerance > 0 for m in bad.mismatches)


# ---- models that are wrong everywhere


def rms(eps: float, axis: int = -1) -> onnx.ModelProto:
    weights: Weights = {"two": np.float32(2), "eps": np.float32(eps), "w": normal(8)}
    weights = {**weights, "axis": np.array([axis])}
    nodes = [
        n("Pow", "x two", "sq"), n("ReduceMean", "sq axis", "mean"), n("Add", "mean eps", "v"),
        n("Sqrt", "v", "r"), n("Div", "x r", "z"), n("Mul", "z w", "y"),
    ]  # fmt: skip
    return model(nodes, [("x", T.FLOAT, ["batch", 8, 8])], [("y", T.FLOAT, ["batch", 8, 8])], weights)


@pytest.mark.parametrize(
    ("original", "optimized"),
    [
        pytest.param(add(), add("Sub"), id="wrong sign"),
        pytest.param(add("Sub"), add("Sub", "b x"), id="swapped inputs"),
        pytest.param(rms(1e-5), rms(1e-6), id="eps 10 times smaller"),
        pytest.param(rms(1e-6), rms(1e-5), id="eps 10 times larger"),
        pytest.param(rms(1e-6), rms(1e-6, axis=1), id="wrong axis of equal size"),
    ],
)
def test_wrong_values_are_found(original: onnx.ModelProto, optimized: onnx.ModelProto) -> None:
    result = verify(original, optimized)
    assert not result.ok
    assert kinds(result.mismatches) == {"value"}
    worst = max(result.mismatches, key=lambda m: m.max_abs)
    assert worst.output == "y"
    assert worst.where
    assert worst.want != worst.got
    assert "value of y" in str(worst)
    assert {m.runtime for m in result.mismatches} == {"on", "off"}


def test_nan_is_found() -> None:
    root = model([n("Sqrt", "x", "r"), n("Mul", "r r", "q"), n("Add", "q b", "y")], [X], [Y], BIAS)
    result = verify(add(), root)
    assert "nan" in kinds(result.mismatches)
    found = next(m for m in result.mismatches if m.kind == "nan")
    assert isinstance(found.got, float)
    assert isinstance(found.want, float)
    assert np.isnan(found.got)
    assert np.isfinite(found.want)
    assert not verify(root, add()).ok  # nor may a NaN vanish
    assert verify(root, root).ok


def test_infinities_keep_their_sign() -> None:
    weights: Weights = {"b": np.zeros(8, np.float32), "s": np.float32(-1)}
    plus = model([n("Abs", "x", "p"), n("Div", "p b", "y")], [X], [Y], weights)
    minus = model([n("Abs", "x", "p"), n("Mul", "p s", "q"), n("Div", "q b", "y")], [X], [Y], weights)
    assert not verify(plus, plus).mismatches
    assert kinds(verify(plus, minus).mismatches) == {"nan"}


def test_integers_are_compared_exactly() -> None:
    ids: Io = ("i", T.INT64, ["batch"])
    out: Io = ("y", T.INT64, ["batch"])
    # float32 loses the last bit of a large integer
    big = {"c": np.array(2**25 + 1)}
    exact = model([n("Add", "i c", "y")], [ids], [out], big)
    through_float = model(
        [n("Add", "i c", "s"), n("Cast", "s", "f", to=T.FLOAT), n("Cast", "f", "y", to=T.INT64)],
        [ids], [out], big,
    )  # fmt: skip
    assert kinds(verify(exact, through_float).mismatches) == {"value"}


def test_shape_and_dtype_are_found() -> None:
    free: Io = ("y", T.FLOAT, None)
    plain = model([n("Add", "x b", "y")], [X], [free], BIAS)
    reduced = model([n("Add", "x b", "p"), n("ReduceMean", "p", "y", keepdims=1)], [X], [free], BIAS)
    assert kinds(verify(plain, reduced).mismatches) == {"shape"}
    nodes = [n("Add", "x b", "p"), n("Cast", "p", "y", to=T.FLOAT16)]
    half = model(nodes, [X], [("y", T.FLOAT16, Y[2])], BIAS)
    assert kinds(verify(add(), half).mismatches) == {"interface", "dtype"}


# ---- errors that only some sizes and paddings show


def test_error_only_for_a_batch_is_found() -> None:
    """The first row's scale is used for all rows."""
    ins: list[Io] = [X, ("s", T.FLOAT, ["batch", 1, 1])]
    good = model([n("Mul", "x s", "y")], ins, [Y])
    nodes = [n("Gather", "s zero", "t", axis=0), n("Mul", "x t", "y")]
    first = model(nodes, ins, [Y], {"zero": np.array([0])})
    result = verify(good, first)
    assert not result.ok
    assert all("batch=1" not in m.feed for m in result.mismatches)


def test_error_only_for_one_token_is_found() -> None:
    """With one token the second of two weights is taken."""
    w = normal(2, 8)
    nodes = [n("Gather", "w zero", "t", axis=0), n("Mul", "x t", "y")]
    good = model(nodes, [X], [Y], {"w": w, "zero": np.array(0)})
    bad = model(
        [
            n("Shape", "x", "all"), n("Gather", "all one", "seq", axis=0), n("Equal", "seq one", "is"),
            n("Cast", "is", "at", to=T.INT64), n("Gather", "w at", "t", axis=0), n("Mul", "x t", "y"),
        ],
        [X], [Y], {"one": np.array(1), "w": w},
    )  # fmt: skip
    result = verify(good, bad)
    assert not result.ok
    assert all("seq=1" in m.feed.split(", ") for m in result.mismatches)


def attention(mask: str, tail: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    """Softmax over the keys whose mask is 1, with `mask` treated right or not; `tail` makes y from o."""
    ins: list[Io] = [("x", T.FLOAT, ["batch", "seq", 8]), ("attention_mask", T.INT64, ["batch", "seq"])]
    weights: Weights = {
        "big": np.float32(-1e9), "one": np.float32(1), "zero": np.float32(0),
        "axes": np.array([1]), "first": np.array([0]), "last": np.array([-1]),
    }  # fmt: skip
    nodes = [
        n("Cast", "attention_mask", "f", to=T.FLOAT), n("Sub", "one f", "gone"), n("Mul", "gone big", "bias"),
        n("Unsqueeze", "bias axes", "bias3"), n("Transpose", "x", "xt", perm=[0, 2, 1]),
        n("MatMul", "x xt", "s"),
    ]  # fmt: skip
    if mask == "right":
        nodes += [n("Add", "s bias3", "m")]
    elif mask == "none":
        nodes += [n("Add", "s zero", "m")]
    else:  # left padding overlooked: the mask only counts if the first key is visible
        nodes += [
            n("Gather", "f first", "f0", axis=1), n("Unsqueeze", "f0 axes", "f1"),
            n("Mul", "bias3 f1", "part"), n("Add", "s part", "m"),
        ]  # fmt: skip
    nodes += [n("Softmax", "m", "p", axis=-1), n("MatMul", "p x", "o")]
    nodes += tail or [n("Identity", "o", "y")]
    used = {i for node in nodes for i in node.input}
    return model(nodes, ins, [Y], {k: v for k, v in weights.items() if k in used})


def test_error_only_for_left_padding_is_found() -> None:
    assert verify(attention("right"), attention("right")).ok
    result = verify(attention("right"), attention("left overlooked"))
    assert not result.ok
    assert all("left padding" in m.feed for m in result.mismatches)
    assert not verify(attention("right"), attention("none")).ok


def at_padding(value: float) -> onnx.ModelProto:
    """The right output at real tokens, `value` at padding."""
    nodes = [n("Unsqueeze", "gone last", "g3"), n("Cast", "g3", "g", to=T.BOOL), n("Where", "g v o", "y")]
    made = attention("right", nodes)
    made.graph.initializer.append(nh.from_array(np.array(value, np.float32), "v"))
    return made


def test_padding_may_hold_any_finite_value() -> None:
    assert verify(attention("right"), at_padding(7)).ok
    assert not verify(attention("right"), at_padding(7), strict=True).ok
    result = verify(attention("right"), at_padding(float("nan")))
    assert kinds(result.mismatches) == {"nan"}
    assert all("padding" in m.feed or "empty" in m.feed for m in result.mismatches)


def test_a_mask_without_softmax_is_no_padding() -> None:
    ins: list[Io] = [X, ("keep_mask", T.INT64, ["batch", "seq"])]

    def filled(value: float) -> onnx.ModelProto:
        nodes = [n("Unsqueeze", "keep_mask last", "k"), n("Cast", "k", "w", to=T.BOOL)]
        nodes += [n("Where", "w x c", "y")]
        return model(nodes, ins, [Y], {"last": np.array([-1]), "c": np.float32(value)})

    assert verify(filled(3), filled(3)).ok
    assert not verify(filled(3), filled(4)).ok


# ---- interface


def test_interface_differences_are_found() -> None:
    def named(found: Sequence[Mismatch]) -> list[str]:
        return [m.output for m in found if m.kind == "interface"]

    renamed = model([n("Add", "x b", "z")], [X], [("z", T.FLOAT, Y[2])], BIAS)
    assert named(verify(add(), renamed).mismatches) == ["outputs"]
    fixed = model([n("Add", "x b", "y")], [("x", T.FLOAT, [1, "seq", 8])], [Y], BIAS)
    assert named(verify(add(), fixed).mismatches) == ["x (dims)"]
    vague = model([n("Add", "x b", "y")], [X], [("y", T.FLOAT, [None, "seq", 8])], BIAS)
    assert named(verify(vague, add()).mismatches) == []  # better known than before
    assert named(verify(add(), vague).mismatches) == ["y (dims)"]
    two = model([n("Add", "x b", "y"), n("Sub", "x b", "z")], [X], [Y, ("z", T.FLOAT, Y[2])], BIAS)
    swapped = model([n("Add", "x b", "y"), n("Sub", "x b", "z")], [X], [("z", T.FLOAT, Y[2]), Y], BIAS)
    assert named(verify(two, swapped).mismatches) == ["outputs"]


def test_a_default_input_must_stay_one() -> None:
    listed: list[Io] = [X, ("b", T.FLOAT, [8])]
    overridable = model([n("Add", "x b", "y")], listed, [Y], BIAS)
    assert verify(overridable, overridable).ok
    baked = model([n("Identity", "b", "b2"), n("Add", "x c", "y")], listed, [Y], {**BIAS, "c": BIAS["b"]})
    result = verify(overridable, baked)
    assert not result.ok
    assert all("overridden" in m.feed for m in result.mismatches)


# ---- what cannot be compared


def test_random_outputs_are_excluded_and_listed() -> None:
    outs: list[Io] = [Y, ("r", T.FLOAT, [4])]
    noisy = model([n("Add", "x b", "y"), n("RandomNormal", "", "r", shape=[4])], [X], outs, BIAS)
    noisy.graph.node[1].ClearField("input")
    wrong = model([n("Sub", "x b", "y"), n("RandomNormal", "", "r", shape=[4])], [X], outs, BIAS)
    wrong.graph.node[1].ClearField("input")
    result = verify(noisy, noisy)
    assert result.ok
    assert result.excluded == ["r"]
    assert {m.output for m in verify(noisy, wrong).mismatches} == {"y"}


def test_a_broken_optimized_model_is_a_mismatch_and_a_broken_original_is_skipped() -> None:
    broken = model([n("Add", "x missing", "y")], [X], [Y])
    result = verify(add(), broken)
    assert kinds(result.mismatches) == {"error"}
    assert not result.ok
    result = verify(broken, broken)
    assert "cannot load the original" in result.skipped
    assert not result.ok
    assert result.runs == 0


def test_feeds_the_original_refuses_are_dropped() -> None:
    weights = {"table": normal(4, 8), "axis": np.array([1])}
    nodes = [
        n("Shape", "x", "all"), n("Gather", "all axis", "seq"), n("Gather", "table seq", "t", axis=0),
        n("Mul", "x t", "y"),
    ]  # fmt: skip
    short = model(nodes, [X], [Y], weights)  # fails for four tokens and more
    result = verify(short, short)
    assert result.ok
    assert result.dropped
    assert all(int(d.split("seq=")[1].split(":")[0].split(",")[0]) >= 4 for d in result.dropped)
    long = verify(short, short, dims={"seq": 9})
    assert not long.ok
    assert "runs on no feed" in long.skipped


def test_an_error_only_in_the_optimized_model_is_found() -> None:
    def reshaped(*shape: int) -> onnx.ModelProto:
        nodes = [n("Reshape", "x shape", "p"), n("Add", "p b", "y")]
        return model(nodes, [X], [Y], {**BIAS, "shape": np.array(shape)})

    assert "shape" in kinds(verify(add(), reshaped(1, -1, 8)).mismatches)
    assert "error" in kinds(verify(add(), reshaped(2, 5, 8)).mismatches)


# ---- where models come from


def test_external_data_by_path_and_in_memory(tmp_path: Path) -> None:
    def saved(name: str, seed: int) -> Path:
        big = model(
            [n("MatMul", "x w", "p"), n("MatMul", "p v", "y")], [X], [Y],
            {"w": normal(8, 256, seed=seed), "v": normal(256, 8)},
        )  # fmt: skip
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        onnx.save_model(big, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
        return path

    first, same, other = saved("a", 1), saved("b", 1), saved("c", 2)
    assert (first.parent / "weights.bin").stat().st_size > 8192
    before = {p.name: p.stat().st_nlink for p in first.parent.iterdir()}
    loaded = ir.load(same)
    assert isinstance(loaded.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert verify(first, loaded).ok
    assert isinstance(loaded.graph.initializers["w"].const_value, ir.ExternalTensor)  # left as it was
    assert verify(loaded, str(same)).ok
    assert not verify(first, ir.load(other)).ok
    assert not verify(ir.load(first), other).ok
    assert {p.name: p.stat().st_nlink for p in first.parent.iterdir()} == before


def test_all_kinds_of_model_agree(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(add(), path)
    for one in (path, str(path), add(), ir.from_proto(add())):
        assert verify(one, add()).ok


def test_an_unreadable_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.onnx"):
        verify(tmp_path / "none.onnx", add())


def test_nothing_is_printed_and_progress_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    verify(attention("right"), attention("none"), progress=said.append)
    verify(model([n("Add", "x missing", "y")], [X], [Y]), add())
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")
    assert any("original" in s for s in said)
    assert any("optimized" in s for s in said)


# ---- feeds


def test_feeds_are_reproducible() -> None:
    first, second = (make_feeds(attention("right"), seed=3) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.name == b.name
        assert all(np.array_equal(a.inputs[k], b.inputs[k]) for k in a.inputs)
    other = make_feeds(attention("right"), seed=4)[0]
    assert not np.array_equal(other.inputs["x"], first[0].inputs["x"])


def decoder() -> onnx.ModelProto:
    ins: list[Io] = [
        ("input_ids", T.INT64, ["batch", "seq"]),
        ("attention_mask", T.INT64, ["batch", "past + seq"]),
        ("position_ids", T.INT64, ["batch", "seq"]),
        ("past_key", T.FLOAT, ["batch", 2, "past", 4]),
        ("token_type_ids", T.INT64, ["batch", "seq"]),
    ]
    weights = {"emb": normal(11, 8), "types": normal(2, 8), "pos": normal(20, 8), "off": np.array(2)}
    nodes = [
        n("Gather", "emb input_ids", "e"), n("Cast", "token_type_ids", "t32", to=T.INT32),
        n("Gather", "types t32", "t"), n("Add", "position_ids off", "p2"), n("Gather", "pos p2", "p"),
        n("Add", "e t", "et"), n("Add", "et p", "y"), n("Cast", "attention_mask", "m", to=T.FLOAT),
        n("Softmax", "m", "a", axis=-1), n("Identity", "past_key", "k"),
    ]  # fmt: skip
    outs: list[Io] = [Y, ("a", T.FLOAT, ["batch", "past + seq"]), ("k", T.FLOAT, ["batch", 2, "past", 4])]
    return model(nodes, ins, outs, weights)


def test_feeds_fit_the_model() -> None:
    feeds = make_feeds(decoder())
    for feed in feeds:
        ids, mask, position = (feed.inputs[k] for k in ("input_ids", "attention_mask", "position_ids"))
        (batch, seq), past = ids.shape, feed.inputs["past_key"].shape[2]
        assert (batch, seq, past) == tuple(feed.dims[d] for d in ("batch", "seq", "past"))
        assert mask.shape == (batch, past + seq)
        assert set(np.unique(mask)) <= {0, 1}
        assert ids.min() >= -11
        assert ids.max() < 11
        assert position.min() >= -20
        assert position.max() < 18
        assert np.abs(feed.inputs["token_type_ids"]).max() <= 2
        if feed.pad_mask is not None:
            assert np.array_equal(feed.pad_mask, mask)
            assert feed.pad_dims == {"past + seq", "seq"}
    sizes = [f.dims for f in feeds]
    assert {1, 2, 3} <= {d["batch"] for d in sizes}
    assert 1 in {d["seq"] for d in sizes}
    assert 0 in {d["past"] for d in sizes}
    assert any(f.inputs["position_ids"].shape[0] == 1 < f.dims["batch"] for f in feeds)
    assert any(f.dims["seq"] > 18 for f in feeds)  # longer than the table
    names = " ".join(f.name for f in feeds)
    for kind in ("left padding", "right padding", "one row empty", "scattered", "large", "negative"):
        assert kind in names
    assert verify(decoder(), decoder()).ok


def test_large_positions_where_nothing_bounds_them() -> None:
    nodes = [n("Cast", "position_ids", "p", to=T.FLOAT), n("Cos", "p", "y")]
    made = model(nodes, [("position_ids", T.INT64, ["batch", "seq"])], [("y", T.FLOAT, ["batch", "seq"])])
    feeds = make_feeds(made)
    assert max(int(f.inputs["position_ids"].max()) for f in feeds) > 100_000
    assert min(int(f.inputs["position_ids"].min()) for f in feeds) < 0


def test_dims_fix_sizes_and_a_wrong_name_is_an_error() -> None:
    feeds = make_feeds(decoder(), dims={"batch": 4, "seq": [1, 9]})
    assert {f.dims["batch"] for f in feeds} == {4}
    assert {f.dims["seq"] for f in feeds} == {1, 9}
    assert all(f.inputs["attention_mask"].shape[1] == f.dims["past"] + f.dims["seq"] for f in feeds)
    with pytest.raises(ModelError, match="'sequence'"):
        make_feeds(decoder(), dims={"sequence": 4})


def test_unnamed_dims_and_weights_beside_inputs() -> None:
    ins: list[Io] = [("x", T.FLOAT, [None, None, None])]
    made = model([n("MatMul", "x w", "y")], ins, [("y", T.FLOAT, None)], {"w": normal(6, 3)})
    assert {f.inputs["x"].shape[2] for f in make_feeds(made)} == {6}
    result = verify(made, made)
    assert result.ok
    assert not result.dropped


def test_own_feeds_are_used() -> None:
    x = np.ones((1, 1, 8), np.float32)
    result = verify(add(), add(), feeds=[Feed("mine", {"x": x})])
    assert result.ok
    assert result.runs == 2
