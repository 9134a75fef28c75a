"""A decoder block: x + attention(norm(x)) and, of that, x + down(act(up(norm(x))))."""

from __future__ import annotations

import numpy as np
from grammar import attention, gelu, norms, rope
from grammar.choices import Drawing
from grammar.writer import F64, Arrays, Spelling, Writer

HEADS, HEAD = 2, 16
WIDTH, INNER = HEADS * HEAD, 48
EPS = 1e-5
SIZES = [{"batch": 2, "seq": 5}, {"batch": 1, "seq": 1}, {"batch": 3, "seq": 4}]
ACTIVATIONS = {"gelu": ("erf", "Gelu"), "gelu tanh": ("tanh", "FastGelu"), "quick gelu": ("1.702", "QuickGelu")}
MASKS = (*attention.BOOLEAN, "added bias", "none")


def block(draw: Drawing, prefix: str = "") -> Spelling:
    w = Writer(draw, prefix, SIZES, ("float32", "float16"))
    centered = draw.choice("block.norm", ("RMSNorm", "LayerNorm")) == "LayerNorm"
    kv = 1 if draw.choice("groups", ("one", "two")) == "two" else HEADS
    activation, fused = ACTIVATIONS[draw.choice("block.activation", tuple(ACTIVATIONS))]
    matrices = {
        name: w.weights(*shape) * np.asarray(shape[0] ** -0.5, w.element)
        for name, shape in {
            "q": (WIDTH, WIDTH), "k": (WIDTH, kv * HEAD), "v": (WIDTH, kv * HEAD), "o": (WIDTH, WIDTH),
            "up": (WIDTH, INNER), "down": (INNER, WIDTH),
        }.items()
    }  # fmt: skip
    weights = [w.weights(WIDTH, low=0.5, high=1.5) for _ in range(2)]
    biases = [w.weights(WIDTH) if centered else None for _ in range(2)]

    def times(value: str, name: str) -> str:
        if draw.choice("linear", ("MatMul", "Transpose of the weight")) == "MatMul":
            return w.MatMul(value, w.const(matrices[name]))
        return w.MatMul(value, w.Transpose(w.const(matrices[name].T.copy()), perm=[1, 0]))

    def norm(value: str, k: int) -> str:
        if centered:
            return norms.layer(w, value, WIDTH, 3, weights[k], biases[k], EPS)
        return norms.rms(w, value, WIDTH, 3, weights[k], EPS)

    x = w.input("x", "batch", "seq", WIDTH)
    h = norm(x, 0)
    flat = [times(h, name) for name in "qkv"]
    place = draw.choice("block.rope", ("heads first", "positions first"))
    split = [w.reshape(p, 0, 0, HEADS if a == "q" else kv, HEAD) for a, p in zip("qkv", flat, strict=True)]
    rotation = rope.Rotation(w, "BNSH" if place == "heads first" else "BSNH", HEAD)
    if place == "heads first":
        q, k, v = (w.Transpose(p, perm=[0, 2, 1, 3]) for p in split)
        tables = rotation.tables(q)
        q, k = rotation(q, tables), rotation(k, tables)
    else:
        tables = rotation.tables(split[0])
        q, k = (w.Transpose(rotation(p, tables), perm=[0, 2, 1, 3]) for p in split[:2])
        v = w.Transpose(split[2], perm=[0, 2, 1, 3])
    if kv != HEADS:
        k, v = (attention.repeated(w, p, HEADS // kv, kv, HEAD) for p in (k, v))
    mask = attention.mask_of(w, x, 1, 3, 4, MASKS, cached=False)
    o = attention.Attention(w, HEAD, HEADS)(q, k, v, mask)
    x = w.add(x, times(attention.merged(w, o, WIDTH), "o"))
    up = times(norm(x, 1), "up")
    act = {"erf": gelu.erf, "tanh": gelu.tanh}.get(activation)
    x = w.add(x, times(act(w, up) if act else gelu.quick(w, up, float(activation)), "down"))
    w.output(x, 3)
    by = rope.scaling(w)

    def reference(f: Arrays) -> list[np.ndarray]:
        m = {name: a.astype(F64) for name, a in matrices.items()}
        x = f["x"]

        def norm(value: np.ndarray, k: int) -> np.ndarray:
            bias = biases[k]
            return norms.normalized(value, weights[k].astype(F64), None if bias is None else bias.astype(F64), EPS)

        h = norm(x, 0)
        q, k, v = ((h @ m[a]).reshape(*x.shape[:2], -1, HEAD).transpose(0, 2, 1, 3) for a in "qkv")
        angles = rope.angles_of(f, x.shape[1], HEAD)[:, None]
        cos, sin = np.cos(angles) * by, np.sin(angles) * by
        q, k = (rope.rotated(p, cos, sin, rotation.pairs) for p in (q, k))
        k, v = (p.repeat(HEADS // kv, 1) for p in (k, v))
        o = attention.weighed(
            q, k, v, HEAD**-0.5, attention.added(f, mask, x.shape[1], x.shape[1], 4), attention.cap(draw)
        )
        x = x + o.transpose(0, 2, 1, 3).reshape(x.shape) @ m["o"]
        return [x + gelu.gelu(norm(x, 1) @ m["up"], activation) @ m["down"]]

    expected = {"LayerNormalization" if centered else "RMSNormalization": 2, "RotaryEmbedding": 2}
    expected |= attention.expected(draw)
    if fused != "Gelu" or not gelu.apart(w, fused):
        expected[fused] = 1
    return w.finish(reference, expected, INNER)
