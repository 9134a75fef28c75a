"""Attention: softmax(q k^T * scale + mask) v, of each head."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from grammar.choices import Drawing
from grammar.writer import F32, F64, Arrays, Spelling, Writer, kept, normal

HEADS, HEAD = 4, 8
WIDTH = HEADS * HEAD
SIZES = [{"batch": 2, "seq": 5, "past": 3}, {"batch": 1, "seq": 1, "past": 2}, {"batch": 3, "seq": 4, "past": 1}]
LOW = {"float16": -65504.0, "float32": float(np.finfo(np.float32).min), "float64": float(np.finfo(np.float64).min)}
LONGEST = 16
CAP = 2.0  # of scores, where there is one


@dataclass
class Mask:
    """How scores are masked, and what that is in numpy: [.., S, T] of numbers to add, from feeds and sizes."""

    how: str
    causal: bool = False
    values: dict[str, str] = field(default_factory=dict)


class Attention:
    """One way to write an attention of heads [batch, heads, length, size] to the values of the heads."""

    def __init__(self, w: Writer, head: int, heads: int = HEADS) -> None:
        self.w, self.head, self.heads, self.scale = w, head, heads, head**-0.5
        self.rank = 4

    # ---- scores

    def scores(self, q: str, k: str, kt: str = "") -> str:
        """q k^T * scale. `kt` is k already turned."""
        w, s = self.w, self.scale
        scaled = w.draw.choice("scale.place", ("scores", "q", "k", "roots on both", "scores divided", "q divided"))
        root = w.draw.choice("scale.number", ("constant", "run time"))

        def number(x: float) -> str:
            return w.num(x) if root == "constant" else w.Sqrt(w.num(x * x))

        if self.rank == 4 and w.draw.wrong("attention.scale for each head"):
            q = w.Mul(q, w.const(np.linspace(0.2, 2, self.heads).reshape(-1, 1, 1)))
        match scaled:
            case "q":
                q = w.mul(q, number(s))
            case "q divided":
                q = w.Div(q, number(1 / s))
            case "k":
                k, kt = (w.mul(k, number(s)), kt and w.mul(kt, number(s)))
            case "roots on both":
                by = number(s**0.5)
                q, k, kt = w.mul(q, by), w.mul(k, by), kt and w.mul(kt, by)
        product = self.product(q, k, kt)
        if scaled == "scores":
            return w.mul(product, number(s))
        return w.Div(product, number(1 / s)) if scaled == "scores divided" else product

    def product(self, q: str, k: str, kt: str) -> str:
        w, r = self.w, self.rank
        if kt:
            return w.MatMul(q, kt)
        how = w.draw.choice("scores", ("MatMul", "Einsum", "Einsum, other letters", "(k q^T)^T"))
        last = [*range(r - 2), r - 1, r - 2]
        lead = "bn"[4 - r :]
        match how:
            case "Einsum":
                return w.Einsum(q, k, equation=f"{lead}qd,{lead}kd->{lead}qk")
            case "Einsum, other letters":
                other = "xh"[4 - r :]
                return w.Einsum(k, q, equation=f"{other}jc,{other}ic->{other}ij")
            case "(k q^T)^T":
                return w.Transpose(w.MatMul(k, w.Transpose(q, perm=last)), perm=last)
        return w.MatMul(q, w.Transpose(k, perm=last))

    # ---- masks

    def masked(self, s: str, mask: Mask) -> str:
        w, how = self.w, mask.how
        if how == "none":
            return s
        if how in ("added bias", "scalar bias", "rank-1 bias"):
            return w.add(s, mask.values["bias"])
        keep = mask.values["keep"]
        if w.draw.wrong("attention.mask inverted"):
            keep = w.Or(w.Not(keep), self._first(keep))
        low = {"-inf": -np.inf, "-1e9": -1e9 if w.kind != np.float16 else LOW["float16"]}.get(
            w.draw.choice("mask.low", ("lowest", "-inf", "-1e9")), LOW[w.kind.name]
        )
        if w.draw.wrong("attention.low of -5"):
            low = -5.0
        if w.draw.wrong("attention.mask behind softmax"):
            return s
        hidden = w.num(low)
        match how:
            case "Where(keep, s, low)":
                return w.Where(keep, s, hidden)
            case "Where(Not keep, low, s)":
                return w.Where(w.Not(keep), hidden, s)
            case "s + Where(keep, 0, low)":
                return w.add(s, w.Where(keep, w.num(0), hidden))
        if low == -np.inf:
            low = LOW[w.kind.name]
        big = max(-low, 5.0) if w.draw.choice("mask.big", ("lowest", "1e4")) == "lowest" or low == -5 else 1e4
        ones = self._number(keep)
        rest = w.Sub(w.num(1), ones)
        match how:
            case "s + (1 - m) * -big":
                return w.add(s, w.mul(rest, w.num(-big)))
            case "s - (1 - m) * big":
                if w.draw.wrong("attention.sign of the mask"):
                    return w.add(s, w.mul(rest, w.num(big)))
                return w.Sub(s, w.mul(rest, w.num(big)))
            case "s + -((1 - m) * big)":
                return w.add(s, w.negative(w.mul(rest, w.num(big))))
            case "s + (m - 1) * big":
                return w.add(s, w.mul(w.Sub(ones, w.num(1)), w.num(big)))
        return w.Sub(w.mul(s, ones), w.mul(rest, w.num(big)))  # s m - big (1 - m), GPT-2

    def _number(self, keep: str) -> str:
        w = self.w
        match w.draw.choice("mask.number", ("Cast", "Cast of integers", "Where(keep, 1, 0)")):
            case "Cast of integers":
                return str(w.cast(w.cast(keep, np.int64), w.kind))
            case "Where(keep, 1, 0)":
                return str(w.Where(keep, w.num(1), w.num(0)))
        return str(w.cast(keep, w.kind))

    def capped(self, s: str) -> str:
        """CAP * tanh(s / CAP)"""
        w = self.w
        how = w.draw.choice("attention.cap", ("none", "c tanh(s / c)", "c tanh(s * (1/c))"))
        if how == "none":
            return s
        small = w.Div(s, w.num(CAP)) if how == "c tanh(s / c)" else w.mul(s, w.num(1 / CAP))
        return w.mul(w.Tanh(small), w.num(CAP))

    def _first(self, keep: str) -> str:
        """True for the first key alone: a row that hides all is outside what an attention is fused for."""
        w = self.w
        places = w.const(np.arange(LONGEST) == 0, np.bool_)
        return str(w.Slice(places, w.ints(0), w.size(keep, self.rank - 1, self.rank), w.ints(0)))

    # ---- weights and values

    def softmax(self, s: str) -> str:
        w = self.w
        options = ("axis -1", "axis of rank - 1", "written out", "written out, Reciprocal", "shifted", "LogSoftmax")
        how = w.draw.choice("softmax", options)
        if w.draw.wrong("attention.softmax axis"):
            return w.Softmax(s, axis=-2)
        if how in ("axis -1", "axis of rank - 1"):
            return w.Softmax(s, axis=-1 if how == "axis -1" else self.rank - 1)
        if how == "LogSoftmax":
            return w.Exp(w.LogSoftmax(s, axis=-1))
        d = w.Sub(s, w.reduce("ReduceMax", s, -1))
        if how == "shifted":
            return w.Softmax(d, axis=-1)
        e = w.Exp(d)
        total = w.reduce("ReduceSum", e, -2 if w.draw.wrong("attention.sum over queries") else -1)
        return w.Div(e, total) if how == "written out" else w.mul(e, w.Reciprocal(total))

    def values(self, p: str, v: str) -> str:
        w, r = self.w, self.rank
        last = [*range(r - 2), r - 1, r - 2]
        lead = "bn"[4 - r :]
        how = w.draw.choice("values", ("MatMul", "Einsum", "Einsum, other letters", "(v^T p^T)^T"))
        match how:
            case "Einsum":
                return w.Einsum(p, v, equation=f"{lead}qk,{lead}kd->{lead}qd")
            case "Einsum, other letters":
                other = "xh"[4 - r :]
                return w.Einsum(v, p, equation=f"{other}jc,{other}ij->{other}ic")
            case "(v^T p^T)^T":
                turned = w.MatMul(w.Transpose(v, perm=last), w.Transpose(p, perm=last))
                return w.Transpose(turned, perm=last)
        return w.MatMul(p, v)

    def __call__(self, q: str, k: str, v: str, mask: Mask, kt: str = "") -> str:
        w = self.w
        widths = ["none", "softmax", "scores and softmax", "q and k"] if w.element != F64 else ["none"]
        wide = w.draw.choice("attention.widened", widths)
        fine = F32 if wide != "none" else w.element
        if wide == "q and k":
            q, k, kt = w.cast(q, fine), w.cast(k, fine), kt and w.cast(kt, fine)
        with w.computing(fine if wide == "q and k" else w.element):
            s = self.scores(q, k, kt)
        if wide == "scores and softmax":
            s = w.cast(s, fine)
        with w.computing(fine if wide not in ("none", "softmax") else w.element):
            s = self.masked(self.capped(s), self._as(mask, w.kind))
        if wide == "softmax":
            s = w.cast(s, fine)
        with w.computing(fine):
            p = self.softmax(s)
            if "keep" in mask.values and w.draw.wrong("attention.mask behind softmax"):
                p = w.mul(p, w.cast(mask.values["keep"], w.kind))
            if w.draw.wrong("attention.weights cubed"):
                p = w.Mul(p, w.Mul(p, p))
            if w.draw.choice("guard", ("none", "IsNaN")) == "IsNaN":
                p = w.Where(w.IsNaN(p), w.num(0), p)
        if wide != "none":
            p = w.cast(p, w.element)
        return self.values(p, v)

    def _as(self, mask: Mask, kind: np.dtype) -> Mask:
        if "bias" not in mask.values or kind == self.w.element:
            return mask
        return Mask(mask.how, mask.causal, {**mask.values, "bias": self.w.cast(mask.values["bias"], kind)})


BOOLEAN = ("Where(keep, s, low)", "Where(Not keep, low, s)", "s + Where(keep, 0, low)", "s + (1 - m) * -big",
           "s - (1 - m) * big", "s + -((1 - m) * big)", "s + (m - 1) * big", "s m - big (1 - m)")  # fmt: skip


def mask_of(w: Writer, q: str, axis: int, rank: int, axes: int, options: tuple[str, ...], cached: bool) -> Mask:
    """The mask of scores of that many axes; q has the positions on `axis`. A cache hides nothing by position."""
    how = w.draw.choice("mask", options)
    if how == "added bias":
        lead = ("batch", 1) if axes == 4 else ("batch",)
        bias = w.input("bias", *lead, "seq", "all" if cached else "seq")
        return Mask(how, values={"bias": bias})
    if how == "scalar bias":
        return Mask(how, values={"bias": w.num(0.7)})
    if how == "rank-1 bias":
        return Mask(how, values={"bias": w.input("bias", "all" if cached else "seq")})
    if how == "none":
        return Mask(how)
    kinds = ("padding",) if cached else ("padding", "causal", "causal and padding")
    kind = w.draw.choice("mask.kind", kinds)
    parts = []
    if "padding" in kind:
        keep = w.input("keep", "batch", "all" if cached else "seq", kind=np.bool_, make=kept)
        form = w.draw.choice("padding", ("Unsqueeze", "Reshape", "indices of all positions"))
        if form == "Reshape":
            here = (keep, 0, 2), (keep, 1, 2)
            keep = w.reshape(keep, here[0], *([1] * (axes - 2)), here[1])
        else:
            if form == "indices of all positions":
                n = w.squeeze(w.size(keep, 1, 2), 0)
                keep = w.Gather(keep, w.Range(w.int(0), n, w.int(1)), axis=1)
            keep = w.unsqueeze(keep, *range(1, axes - 1))
        parts.append(keep)
    if "causal" in kind:
        n = w.size(q, axis, rank)
        trilu = ("Trilu",) if w.opset >= 14 else ()
        form = w.draw.choice("causal", ("positions compared", "rows of a triangle", *trilu))
        if form == "rows of a triangle":
            table = w.const(np.tril(np.ones((LONGEST, LONGEST), bool)), np.bool_)
            both = w.Slice(table, w.Concat(w.ints(0), w.ints(0), axis=0), w.Concat(n, n, axis=0), w.ints(0, 1))
        elif form == "Trilu":
            ones = w.Expand(w.const(1.0, np.float32), w.Concat(n, n, axis=0))
            both = w.Cast(w.Trilu(ones, upper=0), to=9)
        else:
            places = w.Range(w.int(0), w.squeeze(n, 0), w.int(1))
            both = w.LessOrEqual(w.unsqueeze(places, 0), w.unsqueeze(places, 1))
        parts.append(w.unsqueeze(both, *range(axes - 2)) if axes > 2 else both)
    keep = parts[0] if len(parts) == 1 else w.And(*parts)
    match w.draw.choice("logic", ("none", "And(True, m)", "Or(False, m)")):
        case "And(True, m)":
            keep = w.And(w.const(True, np.bool_), keep)
        case "Or(False, m)":
            keep = w.Or(keep, w.const(False, np.bool_))
    return Mask(how, "causal" in kind, {"keep": keep})


def expected(draw: Drawing) -> dict[str, int]:
    """What is fused. Of scores without a bound that are replaced by -1e4 nothing need be: lower ones would be seen."""
    replaced = draw.chosen["mask"] == BOOLEAN[-1] and draw.chosen.get("mask.big") == "1e4"
    return {} if replaced and draw.chosen["attention.cap"] == "none" else {"Attention": 1}


def weighed(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: np.ndarray, cap: float = 0.0
) -> np.ndarray:
    """In float64, of arrays whose last two axes are length and size; the mask is added to scores that are capped."""
    s = q @ np.swapaxes(k, -1, -2) * scale
    s = (cap * np.tanh(s / cap) if cap else s) + mask
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def added(f: Arrays, mask: Mask, queries: int, keys: int, axes: int) -> np.ndarray:
    """What is added to the scores, [batch or 1, 1 (of four axes), queries or 1, keys]."""
    if mask.how == "none":
        return np.zeros(())
    if mask.how == "scalar bias":
        return np.full((), 0.7)
    if "bias" in f:
        return f["bias"]
    keep = np.ones((1, 1, queries, keys), bool)
    if "keep" in f:
        keep = keep & f["keep"][:, None, None, :]
    if mask.causal:
        keep = keep & np.tril(np.ones((queries, keys), bool))
    found = np.where(keep, 0.0, -np.inf)
    return found if axes == 4 else found[:, 0]


def cap(draw: Drawing) -> float:
    return CAP if draw.chosen["attention.cap"] != "none" else 0.0


def heads(w: Writer, x: str, n: int, head: int) -> str:
    """[B,S,n*H] to [B,n,S,H]."""
    return w.Transpose(w.reshape(x, 0, 0, n, head), perm=[0, 2, 1, 3])


def merged(w: Writer, o: str, width: int) -> str:
    """[B,N,S,H] to [B,S,width]."""
    return w.reshape(w.Transpose(o, perm=[0, 2, 1, 3]), 0, 0, width)


def repeated(w: Writer, k: str, times: int, n: int, head: int) -> str:
    """Each of the n heads [B,n,S,H] so many times."""
    match w.draw.choice("repeat", ("Expand", "Gather", "Tile", "Concat")):
        case "Gather":
            return w.Gather(k, w.const(np.arange(n).repeat(times), np.int64), axis=1)
        case "Tile":
            five = w.Tile(w.unsqueeze(k, 2), w.ints(1, 1, times, 1, 1))
        case "Concat":
            five = w.Concat(*[w.unsqueeze(k, 2)] * times, axis=2)
        case _:
            one = w.unsqueeze(k, 2)
            sizes = w.draw.choice("repeat.sizes", ("ones", "run time"))
            if sizes == "ones":
                five = w.Expand(one, w.ints(1, 1, times, 1, 1))
            else:
                five = w.Expand(one, w.vector((k, 0, 4), n, times, (k, 2, 4), head))
    return w.reshape(five, (k, 0, 4), n * times, (k, 2, 4), head)


LAYOUTS = ("split heads", "heads given", "packed", "five axes", "merged with batch", "merged, one tensor of three",
           "channels first", "one head")  # fmt: skip


def attention(draw: Drawing, prefix: str = "") -> Spelling:
    w = Writer(draw, prefix, [dict(s, all=s["seq"]) for s in SIZES], ("float32", "float16"))
    layout = draw.choice("attention.layout", LAYOUTS)
    cached = layout == "split heads" and draw.choice("cache", ("none", "k", "k^T")) != "none"
    if cached:
        w.sizes = [dict(s, all=s["seq"] + s["past"]) for s in w.sizes]
    cache = draw.chosen.get("cache", "none")
    kv = 2 if layout == "split heads" and draw.choice("groups", ("one", "two")) == "two" else HEADS
    three = layout in ("merged with batch", "merged, one tensor of three", "one head")
    masks = ("none", *BOOLEAN, "added bias", "scalar bias", "rank-1 bias")
    if three and layout != "one head":
        masks = ("none", "scalar bias", "rank-1 bias")
    kt = ""
    presents: list[str] = []
    n = HEADS
    if layout == "heads given":
        q, k, v = (w.input(a, "batch", HEADS, "seq", HEAD) for a in "qkv")
        axis, rank, like = 2, 4, q
    elif layout == "channels first":
        given = [w.input(a, "batch", WIDTH, "seq") for a in "qkv"]
        axis, rank, like = 2, 3, given[0]
        turned = [w.reshape(x, 0, HEADS, HEAD, (x, 2, 3)) for x in given]
        q, k, v = (w.Transpose(x, perm=[0, 1, 3, 2]) for x in turned)
        if draw.choice("channels.k", ("turned twice", "as it is")) == "as it is":
            kt = turned[1]
    elif layout == "one head":
        q, k, v = (w.input(a, "batch", "seq", HEAD) for a in "qkv")
        axis, rank, like = 1, 3, q
    elif layout in ("packed", "five axes", "merged, one tensor of three"):
        qkv = like = w.input("qkv", "batch", "seq", 3 * WIDTH)
        axis, rank = 1, 3
        if layout == "packed":
            q, k, v = (heads(w, p, HEADS, HEAD) for p in w.split(qkv, -1, WIDTH, WIDTH, WIDTH))
        else:
            five = w.Transpose(w.reshape(qkv, 0, 0, 3, HEADS, HEAD), perm=[2, 0, 3, 1, 4])
            if layout != "five axes":
                five = w.reshape(five, 3, -1, (qkv, 1, 3), HEAD)
            if draw.choice("three", ("Gather", "Split")) == "Gather":
                q, k, v = (w.Gather(five, w.int(i), axis=0) for i in range(3))
            else:
                q, k, v = (w.squeeze(p, 0) for p in w.split(five, 0, 1, 1, 1))
    else:
        given = [w.input(a, "batch", "seq", WIDTH if a == "q" else kv * HEAD) for a in "qkv"]
        axis, rank, like = 1, 3, given[0]
        q, k, v = (heads(w, x, HEADS if a == "q" else kv, HEAD) for a, x in zip("qkv", given, strict=True))
        if layout == "merged with batch":
            q, k, v = (w.reshape(x, -1, (like, 1, 3), HEAD) for x in (q, k, v))
    if cached:
        past_v = w.input("past_v", "batch", kv, "past", HEAD)
        v = w.Concat(past_v, v, axis=2)
        if cache == "k":
            past_k = w.input("past_k", "batch", kv, "past", HEAD)
            k = w.Concat(past_k, k, axis=2)
            presents = [k, v]
        else:
            past_k = w.input("past_k", "batch", kv, HEAD, "past")
            kt = w.Concat(past_k, w.Transpose(k, perm=[0, 1, 3, 2]), axis=-1)
            presents = [kt, v]
            if kv != n:
                k, kt = w.Transpose(kt, perm=[0, 1, 3, 2]), ""
    if kv != n:
        k, v = repeated(w, k, n // kv, kv, HEAD), repeated(w, v, n // kv, kv, HEAD)
    plain = layout == "split heads" and not cached and kv == n
    if plain and draw.choice("k", ("[B,N,S,H]", "turned at once")) == "turned at once":
        kt = w.Transpose(w.reshape(given[1], 0, 0, HEADS, HEAD), perm=[0, 2, 3, 1])
    made = Attention(w, HEAD)
    made.rank = 3 if three else 4
    mask = mask_of(w, like, axis, rank, made.rank, masks, cached)
    o = made(q, k, v, mask, kt)
    if three and layout != "one head":
        o = w.reshape(o, (like, 0, 3), HEADS, (like, 1, 3), HEAD)
    given_heads = layout in ("heads given", "one head")
    w.output(o if given_heads else merged(w, o, WIDTH), 3 if layout != "heads given" else 4)
    for p in presents:
        w.output(p, 4)

    def reference(f: Arrays) -> list[np.ndarray]:
        outs = []
        if "qkv" in f:
            x = f["qkv"]
            arrays = list(np.moveaxis(x.reshape(*x.shape[:2], 3, HEADS, HEAD).transpose(2, 0, 3, 1, 4), 0, 0))
        elif layout == "channels first":
            arrays = [f[a].reshape(-1, HEADS, HEAD, f[a].shape[2]).transpose(0, 1, 3, 2) for a in "qkv"]
        elif given_heads:
            arrays = [f[a] for a in "qkv"]
        else:
            arrays = [f[a].reshape(*f[a].shape[:2], -1, HEAD).transpose(0, 2, 1, 3) for a in "qkv"]
        q, k, v = arrays
        if cached:
            past = f["past_k"] if cache == "k" else np.swapaxes(f["past_k"], -1, -2)
            k, v = np.concatenate([past, k], 2), np.concatenate([f["past_v"], v], 2)
            outs = [k if cache == "k" else np.swapaxes(k, -1, -2), v]
        if kv != n:
            k, v = k.repeat(n // kv, 1), v.repeat(n // kv, 1)
        m = added(f, mask, q.shape[-2], k.shape[-2], made.rank if layout == "one head" else 4)
        o = weighed(q, k, v, HEAD**-0.5, m, cap(draw))
        if not given_heads:
            o = o.transpose(0, 2, 1, 3).reshape(o.shape[0], o.shape[2], WIDTH)
        return [o, *outs]

    return w.finish(reference, expected(draw), WIDTH)


__all__ = [
    "Attention",
    "Mask",
    "added",
    "attention",
    "cap",
    "expected",
    "heads",
    "mask_of",
    "merged",
    "normal",
    "repeated",
    "weighed",
]
