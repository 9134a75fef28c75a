"""Spellings of attention that no kept export has: each fuses to one operator with equal numbers, its lookalike not."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.targets import NodeCount

HEAD = """
<ir_version: 10, opset_import: ["" : {opset}]>
agraph (float[batch,seq,24] x, float[batch,seq,24] z, bool[batch,1,1,seq] keep, float[1,3,1,seq] slope)
    => (float[batch,seq,24] y)
<float half = {{0.5}}, float one = {{1.0}}, float low = {{-3.4e38}}, float big = {{-1e9}}, float zero = {{0}},
 float slight = {{-5.0}}, int64[4] split = {{0, 0, 3, 8}}, int64[3] whole = {{0, 0, 24}}, int64[1] last = {{-1}},
 int64[1] heads = {{3}}, int64[1] size = {{8}}, int64[1] all = {{-1}}, int64[1] first = {{0}}>
{{
    q0 = Reshape (x, split)
    q = Transpose <perm = [0, 2, 1, 3]> (q0)
    k0 = Reshape (z, split)
    k = Transpose <perm = [0, 2, 1, 3]> (k0)
    v = Neg (k)
    b = Shape <start = 0, end = 1> (x)
    s = Shape <start = 1, end = 2> (x)
"""
TAIL = """
    o1 = Transpose <perm = [0, 2, 1, 3]> (o)
    y = Reshape (o1, whole)
}
"""
SCORES = "kt = Transpose <perm = [0, 1, 3, 2]> (k) \n r = MatMul (q, kt) \n a = Mul (r, half) \n"
WEIGHED = "o = MatMul (p, v) \n"
SOFTMAX = "p = Softmax <axis = -1> (m) \n" + WEIGHED
MERGED = """
    bn = Mul (b, heads)
    flat = Concat <axis = 0> (bn, s, size)
    q3 = Reshape (q, flat)
    k3 = Reshape (k, flat)
    v3 = Reshape (v, flat)
    k3t = Transpose <perm = [0, 2, 1]> (k3)
    r3 = MatMul (q3, k3t)
    back = Concat <axis = 0> (b, heads, s, size)
"""
APART = """
    o3 = MatMul (p3, v3)
    o = Reshape (o3, back)
"""
MAX = "top = ReduceMax <keepdims = 1> (a, last) \n d = Sub (a, top) \n e = Exp (d) \n"

FUSE = {
    "scale 1 on q and on k": """
        q1 = Mul (q, one)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        kt1 = Mul (kt, one)
        m = MatMul (q1, kt1)
    """ + SOFTMAX,
    "batch and heads merged": MERGED + "a3 = Mul (r3, half) \n p3 = Softmax <axis = -1> (a3)" + APART,
    "merged, a slope for each head": MERGED + """
        bias = Expand (slope, wide)
        bias3 = Reshape (bias, thin)
        a3 = Mul (r3, half)
        m3 = Add (bias3, a3)
        p3 = Softmax <axis = -1> (m3)
    """ + APART,
    "apart for the mask only": MERGED + """
        full = Concat <axis = 0> (b, heads, s, s)
        flat2 = Concat <axis = 0> (bn, s, s)
        a = Reshape (r3, full)
        m = Where (keep, a, low)
        m3 = Reshape (m, flat2)
        p3 = Softmax <axis = -1> (m3)
    """ + APART,
    "batch second, as nn.MultiheadAttention has it": """
        bn = Mul (b, heads)
        tall = Concat <axis = 0> (s, bn, size)
        xs = Transpose <perm = [1, 0, 2]> (x)
        zs = Transpose <perm = [1, 0, 2]> (z)
        qs = Reshape (xs, tall)
        ks = Reshape (zs, tall)
        nz = Neg (zs)
        vs = Reshape (nz, tall)
        q3 = Transpose <perm = [1, 0, 2]> (qs)
        k3 = Transpose <perm = [1, 2, 0]> (ks)
        v3 = Transpose <perm = [1, 0, 2]> (vs)
        r3 = MatMul (q3, k3)
        a3 = Mul (r3, half)
        p3 = Softmax <axis = -1> (a3)
        o3 = MatMul (p3, v3)
        os = Transpose <perm = [1, 0, 2]> (o3)
        long = Concat <axis = 0> (s, b, all)
        w = Reshape (os, long)
        wb = Transpose <perm = [1, 0, 2]> (w)
        o0 = Reshape (wb, split)
        o = Transpose <perm = [0, 2, 1, 3]> (o0)
    """,
    "hidden rather than kept": SCORES + "hide = Not (keep) \n m = Where (hide, low, a)" + "\n" + SOFTMAX,
    "slope, then mask": SCORES + "a1 = Add (a, slope) \n m = Where (keep, a1, low) \n" + SOFTMAX,
    "-1e9": SCORES + "m = Where (keep, a, big) \n" + SOFTMAX,
    "floored": SCORES + "a1 = Where (keep, a, low) \n m = Max (a1, low) \n" + SOFTMAX,
    "weights of hidden keys cleared": SCORES + "a1 = Where (keep, a, low) \n p1 = Softmax <axis = -1> (a1) \n"
    "p = Where (keep, p1, zero) \n" + WEIGHED,
    "scaled after the mask": SCORES + "a1 = Add (a, slope) \n m = Div (a1, half) \n" + SOFTMAX,
    "softmax of shifted scores": SCORES + MAX + "p = Softmax <axis = -1> (d) \n" + WEIGHED,
    "softmax written out": SCORES + MAX + "t = ReduceSum <keepdims = 1> (e, last) \n p = Div (e, t) \n" + WEIGHED,
    "einsum": """
        a = Einsum <equation = "bqnh,bknh->bnqk"> (q0, k0)
        m = Mul (a, half)
        p = Softmax <axis = -1> (m)
        v0 = Neg (k0)
        o2 = Einsum <equation = "bnqk,bknh->bqnh"> (p, v0)
        o = Transpose <perm = [0, 2, 1, 3]> (o2)
    """,
    "keys times queries": """
        qt = Transpose <perm = [0, 1, 3, 2]> (q)
        r = MatMul (k, qt)
        a = Transpose <perm = [0, 1, 3, 2]> (r)
        m = Mul (a, half)
    """ + SOFTMAX,
    "heads in groups, in five axes": """
        five = Constant <value_ints = [0, 1, 3, -1, 8]> ()
        four = Constant <value_ints = [0, 3, -1, 8]> ()
        third = Constant <value_ints = [2]> ()
        one_k = Slice (k, first, one_i, one_i)
        one_v = Neg (one_k)
        q5 = Reshape (q, five)
        k5 = Unsqueeze (one_k, third)
        kt = Transpose <perm = [0, 1, 2, 4, 3]> (k5)
        r = MatMul (q5, kt)
        a = Mul (r, half)
        bias = Where (keep, zero, low)
        bias5 = Unsqueeze (bias, one_i)
        m = Add (a, bias5)
        p = Softmax <axis = -1> (m)
        v5 = Unsqueeze (one_v, third)
        o5 = MatMul (p, v5)
        o = Reshape (o5, four)
    """,
    "keys of one head": """
        one_k = Slice (k, first, one_i, one_i)
        one_v = Neg (one_k)
        kt = Transpose <perm = [0, 1, 3, 2]> (one_k)
        r = MatMul (q, kt)
        m = Mul (r, half)
        p = Softmax <axis = -1> (m)
        o = MatMul (p, one_v)
    """,
}  # fmt: skip
KEEP = {
    "a low of -5": SCORES + "m = Where (keep, a, slight) \n" + SOFTMAX,
    "weights of seen keys cleared": SCORES + "a1 = Where (keep, a, low) \n p1 = Softmax <axis = -1> (a1) \n"
    "p = Where (keep, zero, p1) \n" + WEIGHED,
    "floored at -5": SCORES + "m = Max (a, slight) \n" + SOFTMAX,
    "shifted by its own mean": SCORES + "t = ReduceMean <keepdims = 1> (a, last) \n d = Sub (a, t) \n"
    "e = Exp (d) \n u = ReduceSum <keepdims = 1> (e, last) \n p = Div (e, u) \n" + WEIGHED,
    "summed over queries": SCORES + MAX + "t = ReduceSum <keepdims = 1> (e, before) \n p = Div (e, t) \n" + WEIGHED,
}  # fmt: skip
OTHER_ORDER = (
    MERGED.replace("(q, flat)", "(qb, flat)").replace("flat = ", "qb = Transpose <perm = [1, 0, 2, 3]> (q) \n flat = ")
    + "a3 = Mul (r3, half) \n p3 = Softmax <axis = -1> (a3)"
    + APART
)
SIZES = [(1, 1), (2, 3), (3, 7)]


def build(body: str, opset: int = 18) -> onnx.ModelProto:
    if "wide" in body:
        body = "wide = Concat <axis = 0> (b, heads, one_i, s) \n" + body
        body = body.replace("bias3 = ", "thin = Concat <axis = 0> (bn, one_i, s) \n bias3 = ")
    more = "one_i = Constant <value_ints = [1]> () \n before = Constant <value_ints = [-2]> () \n"
    return parser.parse_model(HEAD.format(opset=opset) + more + body + TAIL)


def feeds(batch: int, seq: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 100 + seq)
    keep = rng.random((batch, 1, 1, seq)) < 0.6
    keep[..., 0] = True  # what a row that sees nothing holds is not compared
    floats = {name: rng.normal(size=(batch, seq, 24)).astype(np.float32) for name in "xz"}
    return {**floats, "keep": keep, "slope": rng.normal(size=(1, 3, 1, seq)).astype(np.float32)}


def run(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0])


def attentions(model: onnx.ModelProto) -> int:
    return sum("Attention" in node.op_type for node in model.graph.node)


def equal(model: onnx.ModelProto, optimized: onnx.ModelProto) -> bool:
    """Within a few units in the last place of sums of 8 products and of seq <= 7 weights."""
    pairs = [(run(model, given), run(optimized, given)) for given in (feeds(*size) for size in SIZES)]
    return all(np.allclose(a, b, rtol=1e-5, atol=32 * np.finfo(np.float32).eps) for a, b in pairs)


@pytest.mark.parametrize("name", FUSE)
def test_fuses(name: str) -> None:
    model = build(FUSE[name])
    result = saturate_and_extract(model)
    assert attentions(result.model) == 1
    assert "Softmax" not in {node.op_type for node in result.model.graph.node}
    assert equal(model, result.model)


@pytest.mark.parametrize("name", KEEP)
def test_does_not_fuse(name: str) -> None:
    model = build(KEEP[name])
    result = saturate_and_extract(model)
    assert attentions(result.model) == 0
    assert equal(model, result.model)


def test_heads_and_batch_merged_in_any_order() -> None:
    """Each row of the merged axis is an attention of one head."""
    model = build(OTHER_ORDER)
    result = saturate_and_extract(model)
    assert attentions(result.model) == 1
    assert equal(model, result.model)


PLACES = ["x", "z", "q0", "k0", "q", "k", "kt", "r"]  # q and k before and after each move, K^T, the scores


@pytest.mark.parametrize("places", [*((p,) for p in PLACES), ("x", "z"), ("q0", "k0"), ("q", "k"), ("q", "kt")])
@pytest.mark.parametrize("scaled", ["Mul ({}, scale)", "Mul (scale, {})", "Div ({}, scale)"])
def test_a_scale_anywhere_is_the_scale_of_the_attention(places: tuple[str, ...], scaled: str) -> None:
    lines = ["scale = Constant <value_float = 0.6> ()"]

    def used(name: str) -> str:
        if name not in places:
            return name
        lines.append(f"{name}_scaled = {scaled.format(name)}")
        return f"{name}_scaled"

    def make(name: str, op: str, *operands: str) -> None:
        lines.append(f"{name} = {op} ({', '.join(map(used, operands))})")

    swap, turn = "Transpose <perm = [0, 2, 1, 3]>", "Transpose <perm = [0, 1, 3, 2]>"
    for name, source in (("q", "x"), ("k", "z")):
        lines.append(f"{name}0 = Reshape ({used(source)}, split)")
        make(name, swap, f"{name}0")
    make("kt", turn, "k")
    make("r", "MatMul", "q", "kt")
    lines.append(f"p = Softmax <axis = -1> ({used('r')})")
    head, _, _ = HEAD.format(opset=18).partition("    q0 = ")
    body = head + "\n".join([*lines, "v0 = Reshape (z, split)", f"v = {swap} (v0)", WEIGHED]) + TAIL
    model = parser.parse_model(body)
    optimized = saturate_and_extract(model).model
    assert attentions(optimized) == 1
    assert not {"Mul", "Div", "Softmax"} & {node.op_type for node in optimized.graph.node}
    assert equal(model, optimized)


def test_an_attention_of_repeated_heads_is_grouped() -> None:
    """ONNX Attention as an exporter writes it: keys repeated for it, boolean mask, a reshape that takes 0 as it is."""
    body = """
        two = Constant <value_ints = [2]> ()
        four = Constant <value_ints = [4]> ()
        k2 = Slice (k, first, two, one_i)
        u = Unsqueeze (k2, two)
        e5 = Concat <axis = 0> (b, two, two, s, size)
        e = Expand (u, e5)
        f4 = Concat <axis = 0> (last, four, s, size)
        kk = Reshape <allowzero = 1> (e, f4)
        q1 = Slice (q, first, one_i, one_i)
        qq = Concat <axis = 1> (q, q1)
        full = Concat <axis = 0> (b, one_i, s, s)
        keeps = Expand (keep, full)
        o4 = Attention <scale = 0.5> (qq, kk, kk, keeps)
        o = Slice (o4, first, heads, one_i)
    """
    model = build(body, opset=23)
    result = saturate_and_extract(model, cost=NodeCount())
    assert result.report.cost_before > result.report.cost_after
    [node] = [n for n in result.model.graph.node if n.op_type == "Attention"]
    assert [n.op_type for n in result.model.graph.node].count("Expand") == 1  # the mask's
    assert node.input[3]
    assert equal(model, result.model)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_floor_under_hidden_rows_keeps_them_finite(dtype: type) -> None:
    """softmax(max(scores + m, lowest)) of a row of -inf is even weights; whatever is made of it, no NaN."""
    kind = "float" if dtype == np.float32 else "float16"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g ({kind}[b,2,s,8] q, {kind}[b,2,t,8] k, {kind}[b,2,t,8] v, {kind}[b,1,s,t] m) => ({kind}[b,2,s,8] y) {{
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        r = MatMul (q, kt)
        a = Mul (r, half)
        c = Add (a, m)
        f = Max (c, low)
        p = Softmax <axis = -1> (f)
        y = MatMul (p, v)
    }}"""
    for scale in (0.5, -0.5):
        model = parser.parse_model(text)
        numbers = {"half": scale, "low": np.finfo(dtype).min}
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(n, dtype), k) for k, n in numbers.items())
        optimized = saturate_and_extract(model).model
        rng = np.random.default_rng(0)
        given = {k: rng.normal(size=(2, 2, n, 8)).astype(dtype) for k, n in (("q", 3), ("k", 4), ("v", 4))}
        given["m"] = np.zeros((2, 1, 3, 4), dtype)
        given["m"][0, 0, 1] = -np.inf
        a, b = run(model, given), run(optimized, given)
        assert np.isfinite(b).all()
        near = 32 * float(np.finfo(dtype).eps)
        assert np.allclose(np.delete(a, 1, axis=2), np.delete(b, 1, axis=2), rtol=near, atol=near)


def test_a_scale_that_underflows_is_no_scale() -> None:
    tiny = SCORES.replace("(q, kt)", "(q1, k1)").replace("r = ", "q1 = Mul (q, tiny) \n k1 = Mul (kt, tiny) \n r = ")
    model = build("tiny = Constant <value_float = 1e-30> () \n" + tiny + "m = Identity (a) \n" + SOFTMAX)
    optimized = saturate_and_extract(model).model
    assert attentions(optimized) == 0
    assert equal(model, optimized)


def test_positions_that_wrap_around_hide_keys() -> None:
    body = (
        SCORES
        + """
        n = Squeeze (s)
        step = Constant <value_int = 1> ()
        begin = Constant <value_int = 0> ()
        place = Range (begin, n, step)
        narrow = Cast <to = 3> (place)
        null = Cast <to = 3> (begin)
        seen = GreaterOrEqual (narrow, null)
        m = Where (seen, a, low)
    """
        + "\n"
        + SOFTMAX
    )
    model = build(body)
    optimized = saturate_and_extract(model).model
    given = feeds(1, 200)
    assert np.allclose(run(model, given), run(optimized, given), rtol=1e-5, atol=1e-5)


def test_a_mask_of_nothing_that_widens_the_scores_stays() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[1,2,s,8] q, float[1,2,t,8] k, float[5,1,s,t] like) => (float[5,2,s,8] y)
    <float zero = {0}, float low = {-3.4e38}> {
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        a = MatMul (q, kt)
        n = Shape (like)
        all = ConstantOfShape <value = bool[1] {1}> (n)
        m = Where (all, zero, low)
        c = Add (a, m)
        p = Softmax <axis = -1> (c)
        y = MatMul (p, k)
    }"""
    model = parser.parse_model(text)
    optimized = saturate_and_extract(model).model
    rng = np.random.default_rng(0)
    given = {"q": rng.normal(size=(1, 2, 3, 8)), "k": rng.normal(size=(1, 2, 4, 8)), "like": np.zeros((5, 1, 3, 4))}
    given = {k: v.astype(np.float32) for k, v in given.items()}
    a, b = run(model, given), run(optimized, given)
    assert a.shape == b.shape
    assert np.allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", [
    "c = Pow (x, three) \n d = Mul (c, cube) \n e = Add (x, d) \n t = Mul (e, root) \n u = Tanh (t) \n"
    " v = Add (u, one) \n w = Mul (x, half) \n y = Mul (w, v)",
    "y = Gelu <approximate = \"tanh\"> (x)",
])  # fmt: skip
@pytest.mark.parametrize("sizes", ["[]", "[1]", ""])
def test_a_scalar_gelu_runs(text: str, sizes: str) -> None:
    """onnxruntime's FastGelu takes no scalar."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float{sizes} x) => (float{sizes} y, float{sizes} z) <float three = {{3}}, float cube = {{0.044715}},
     float root = {{0.7978845608}}, float one = {{1}}, float half = {{0.5}}> {{
        z1 = Neg (x)
        z = Neg (z1)
        {text}
    }}""")
    optimized = saturate_and_extract(model).model
    given = {"x": np.full((1,) if sizes == "[1]" else (), 0.7, np.float32)}
    assert np.allclose(run(model, given), run(optimized, given), rtol=1e-5)
