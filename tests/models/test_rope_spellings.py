"""Rotations as people write them: halves and pairs by views, by indices, by signs; and what only looks like one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnx_egraph import saturate_and_extract

HEADS, SIZE, HALF, LONGEST = 2, 8, 4, 16

_TURN = "p = Mul(a, c) q = Mul(b, s) u = Sub(p, q) v = Mul(b, c) w = Mul(a, s) z = Add(v, w)"
_HALVES = "a, b = Split <axis = -1, num_outputs = 2> (x)"
_WIDE = "cc = Concat <axis = -1> (c, c) ss = Concat <axis = -1> (s, s) xc = Mul(x, cc)"
_SWAP = _HALVES + " swap = Concat <axis = -1> (b, a)"
_ROWS = "r = Reshape(x, as_rows) i, j = Split <axis = -2, num_outputs = 2> (r) a = Squeeze(i, m2) b = Squeeze(j, m2)"
_PAIRS = "r = Reshape(x, as_pairs) a = Gather <axis = -1> (r, zero) b = Gather <axis = -1> (r, one)"
_STACK_ROWS = "us = Unsqueeze(u, m2) zs = Unsqueeze(z, m2) st = Concat <axis = -2> (us, zs) y = Reshape(st, flat)"
_STACK_PAIRS = "us = Unsqueeze(u, m1) zs = Unsqueeze(z, m1) st = Concat <axis = -1> (us, zs) y = Reshape(st, flat)"
_COLUMNS = "r = Reshape(x, as_pairs) a, b = Split <axis = -1, num_outputs = 2> (r)"

#: How each is written, from x [B,N,S,8], cos and sin of angles [S,4].
SPELLINGS = {
    "rows": f"c = Cos(f) s = Sin(f) {_ROWS} {_TURN} {_STACK_ROWS}",
    "pairs": f"c = Cos(f) s = Sin(f) {_PAIRS} {_TURN} {_STACK_PAIRS}",
    "pairs to rows": f"c = Cos(f) s = Sin(f) {_PAIRS} {_TURN} {_STACK_ROWS}",
    "columns": f"g = Unsqueeze(f, m1) c = Cos(g) s = Sin(g) {_COLUMNS} {_TURN} st = Concat <axis = -1> (u, z)"
    " y = Reshape(st, flat)",
    "indices": f"c = Cos(f) s = Sin(f) {_WIDE} swap = Gather <axis = -1> (x, swapped) n = Neg(s)"
    " ns = Concat <axis = -1> (n, s) xs = Mul(swap, ns) y = Add(xc, xs)",
    "signs": f"c = Cos(f) s = Sin(f) {_WIDE} {_SWAP} t = Mul(swap, signs) xs = Mul(t, ss) y = Add(xc, xs)",
    "mixed signs": f"c = Cos(f) s = Sin(f) {_WIDE} {_SWAP} t = Mul(swap, mixed) xs = Mul(t, ss) y = Add(xc, xs)",
    "minus": f"c = Cos(f) s = Sin(f) {_WIDE} {_HALVES} n = Neg(a) back = Concat <axis = -1> (b, n) xs = Mul(back, ss)"
    " y = Sub(xc, xs)",
    "plus minus": f"c = Cos(f) s = Sin(f) {_HALVES} {_TURN} n = Neg(b) nq = Mul(n, s) nu = Add(p, nq)"
    " y = Concat <axis = -1> (nu, z)",
    "cut table": f"cc = Slice(cos_table, zeros, length, zeros) ss = Slice(sin_table, zeros, length, zeros) {_HALVES}"
    " n = Neg(b) turned = Concat <axis = -1> (n, a) xc = Mul(x, cc) xs = Mul(turned, ss) y = Add(xc, xs)",
}
SPELLINGS |= {"back": SPELLINGS["minus"].replace("Sub(xc, xs)", "Add(xc, xs)")}
#: Not rotations, or of no pairs the operators know.
LOOKALIKES = {
    "shifted indices": SPELLINGS["indices"].replace("swapped", "shifted"),
    "uneven signs": SPELLINGS["signs"].replace("signs", "uneven"),
    "no sign": f"c = Cos(f) s = Sin(f) {_WIDE} {_SWAP} xs = Mul(swap, ss) y = Add(xc, xs)",
    "rows to pairs": f"c = Cos(f) s = Sin(f) {_ROWS} {_TURN} {_STACK_PAIRS}",
    "plus plus": SPELLINGS["plus minus"].replace("Neg(b)", "Abs(b)"),
}


def build(body: str) -> onnx.ModelProto:
    text = f"""<ir_version: 9, opset_import: ["" : 20]>
        g (float[batch, {HEADS}, seq, {SIZE}] x, float[seq, {HALF}] f) => (float[batch, {HEADS}, seq, {SIZE}] y)
        {{ length = Shape <start = -2, end = -1> (x) {body} }}"""
    model = onnx.parser.parse_model(text)
    angles = np.arange(LONGEST)[:, None] / 10.0 ** np.arange(HALF)
    sign = np.repeat([-1.0, 1.0], HALF)
    tables = dict(cos_table=np.cos(angles), sin_table=np.sin(angles))
    floats = {name: np.concatenate([t, t], -1) for name, t in tables.items()}
    floats |= dict(signs=sign, mixed=np.roll(sign, 1), uneven=np.where(np.arange(SIZE) == HALF, -1, sign))
    place = np.arange(SIZE)
    integers = dict(
        as_rows=[0, 0, 0, 2, HALF], as_pairs=[0, 0, 0, HALF, 2], flat=[0, 0, 0, SIZE], m1=[-1], m2=[-2], zeros=[0],
        zero=0, one=1, swapped=np.roll(place, HALF), shifted=np.roll(place, 1),
    )  # fmt: skip
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in floats.items()]
    constants += [numpy_helper.from_array(np.asarray(v, np.int64), k) for k, v in integers.items()]
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(t for t in constants if t.name in used)
    return model


def fused(body: str) -> int:
    """The rotations found; the numbers of the result are those of the model."""
    model = build(body)
    result = saturate_and_extract(model)
    rng = np.random.default_rng(0)
    for batch, seq in ((2, 5), (1, 1), (3, LONGEST)):
        feeds = dict(x=rng.standard_normal((batch, HEADS, seq, SIZE)), f=rng.standard_normal((seq, HALF)))
        feeds = {k: v.astype(np.float32) for k, v in feeds.items()}
        before, after = (run(m, feeds) for m in (model, result.model))
        np.testing.assert_allclose(after, before, rtol=0, atol=16 * np.finfo(np.float32).eps * np.abs(before).max())
    return result.report.counts().get("RotaryEmbedding", 0)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    return np.asarray(session.run(None, {k: v for k, v in feeds.items() if k in names})[0])


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_rotation_is_found(name: str) -> None:
    assert fused(SPELLINGS[name]) == 1


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_looks_like_one_is_left(name: str) -> None:
    assert fused(LOOKALIKES[name]) == 0
