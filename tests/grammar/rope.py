"""Rotary embedding: each pair (a, b) of a head becomes (a cos - b sin, b cos + a sin); pairs are channels i and
i + H/2 ("halves") or 2i and 2i + 1 ("pairs"), the angle is position * 100^(-2i/H).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from grammar.choices import Drawing
from grammar.writer import F32, F64, Arrays, Spelling, Writer

HEADS, WIDTH, LONGEST = 2, 16, 24
BASE = 100.0
SIZES = [{"batch": 2, "seq": 5}, {"batch": 1, "seq": 1}, {"batch": 3, "seq": 4}]
#: The axes of x, and the place of batch, heads and positions in them.
LAYOUTS = {"BNSH": "bnsh", "BSNH": "bsnh", "SBNH": "sbnh", "SNH": "snh", "NSH": "nsh", "BSH": "bsh"}


@dataclass
class Tables:
    """Cosines and sines, to be multiplied with x; of all channels or of half of them."""

    cos: str
    sin: str
    wide: bool
    rank: int


def inverse(rotated: int) -> np.ndarray:
    return np.asarray(BASE ** (-np.arange(0, rotated, 2) / rotated))


def _positions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, LONGEST, shape)


class Rotation:
    """One way to write a rotation, of however many tensors."""

    def __init__(self, w: Writer, layout: str, rotated: int) -> None:
        self.w, self.axes, self.rotated, self.half = w, LAYOUTS[layout], rotated, rotated // 2
        choice = w.draw.choice
        self.pairs = choice("rope.pairs", ("halves", "pairs")) == "pairs"
        turns = ["rotate", "x c - rotate-back(x) s", "signs in the table", "signs behind the swap", "halves",
                 "halves, negated b", "matrix"]  # fmt: skip
        if self.pairs:
            turns.append("2x2 matrices")
        self.turn = choice("rope.turn", turns)
        self.wide = self.turn not in ("halves", "halves, negated b", "2x2 matrices")
        self.fine = F64 if w.element == F64 else F32

    # ---- angles and tables

    def angles(self, like: str) -> str:
        """[batch or 1 or nothing, seq, half] in the finer type. `like` has the positions on its axis "s"."""
        w = self.w
        source = w.draw.choice("rope.positions", ("ids", "Range", "angles given") if "b" in self.axes else (
            "Range", "angles given", "ids"
        ))  # fmt: skip
        self.source = source
        batched = source == "ids" and "b" in self.axes
        if source == "angles given":
            return w.input("angles", "seq", self.half, kind=self.fine, make=lambda r, s: r.uniform(-3, 3, s))
        if source == "ids":
            ids = w.input("ids", *(("batch", "seq") if batched else ("seq",)), kind=np.int64, make=_positions)
        else:
            n = w.squeeze(w.size(like, self.axes.index("s"), len(self.axes)), 0)
            ids = w.Range(w.int(0), n, w.int(1))
        with w.computing(self.fine):
            return self._angles(w.cast(ids, self.fine), batched)

    def _angles(self, ids: str, batched: bool) -> str:
        w, rank = self.w, 2 if batched else 1
        f = self._frequencies()
        how = w.draw.choice("rope.angles", ("ids * f", "f @ ids", "ids @ f", "Einsum", "Einsum turned"))
        letters = "bs" if batched else "s"
        match how:
            case "Einsum":
                return w.Einsum(ids, f, equation=f"{letters},h->{letters}h")
            case "Einsum turned":
                return w.Einsum(f, ids, equation=f"j,{'bi' if batched else 'i'}->{'bi' if batched else 'i'}j")
            case "f @ ids":
                turned = w.MatMul(w.unsqueeze(f, 1), w.unsqueeze(ids, rank - 1))
                return w.Transpose(turned, perm=[0, 2, 1] if batched else [1, 0])
            case "ids @ f":
                return w.MatMul(w.unsqueeze(ids, rank), w.unsqueeze(f, 0))
        return w.mul(w.unsqueeze(ids, rank), f)

    def _frequencies(self) -> str:
        w = self.w
        f = inverse(self.rotated)
        match w.draw.choice("rope.frequencies", ("constant", "input", "run time")):
            case "input":
                return w.input("inv_freq", self.half, kind=self.fine, make=lambda r, s: f)
            case "run time":
                exponents = w.Div(
                    w.cast(w.Range(w.int(0), w.int(self.rotated), w.int(2)), self.fine), w.num(self.rotated)
                )
                return w.Div(w.num(1), w.Pow(w.num(BASE), exponents))
        return w.const(f)

    def tables(self, like: str) -> Tables:
        w = self.w
        options = ("cosines of angles", "table by positions", "one table of both", "rows of a table")
        how = w.draw.choice("rope.tables", options)
        with w.computing(self.fine):
            cos, sin, rank = self._half_tables(like, how)
            if self.wide and self.widened:
                cos, sin = (self.double(t, rank) for t in (cos, sin))
            if how == "cosines of angles":
                cos, sin = w.Cos(cos), w.Sin(sin)
            match w.draw.choice("rope.scaling", ("none", "* 1.0", "* 1.2", "/ 0.8")):
                case "* 1.0":
                    cos, sin = (w.mul(t, w.num(1)) for t in (cos, sin))
                case "* 1.2":
                    cos, sin = (w.mul(t, w.num(1.2)) for t in (cos, sin))
                case "/ 0.8":
                    cos, sin = (w.Div(t, w.num(0.8)) for t in (cos, sin))
            if w.draw.wrong("rope.cos alone scaled"):
                cos = w.Mul(cos, w.num(1.5))
            if w.draw.wrong("rope.another angle"):
                sin = w.Mul(sin, cos)
            if self.wide and not self.widened:
                cos, sin = (self.double(t, rank) for t in (cos, sin))
        early = w.draw.choice("rope.broadcast", ("Unsqueeze, then Cast", "Cast, then Unsqueeze", "Reshape"))
        if early == "Cast, then Unsqueeze" and self.fine != w.element:
            cos, sin = (w.cast(t, w.element) for t in (cos, sin))
        (cos, rank), (sin, _) = (self._broadcast(t, rank, early == "Reshape") for t in (cos, sin))
        if early != "Cast, then Unsqueeze" and self.fine != w.element:
            cos, sin = (w.cast(t, w.element) for t in (cos, sin))
        if w.draw.wrong("rope.cos and sin swapped"):
            cos, sin = sin, cos
        return Tables(cos, sin, self.wide, rank)

    def _half_tables(self, like: str, how: str) -> tuple[str, str, int]:
        """Angles twice, or cosines and sines; of half the channels, and their rank."""
        w = self.w
        self.widened = w.draw.choice("rope.doubled", ("angles", "cosines")) == "angles"
        if how == "cosines of angles":
            angles = self.angles(like)
            return angles, angles, 3 if self.source == "ids" and "b" in self.axes else 2
        self.widened = False
        angles = np.arange(LONGEST)[:, None] * inverse(self.rotated)
        rows = how == "rows of a table"
        self.source = "Range" if rows else "ids"
        batched = "b" in self.axes and not rows
        if rows:
            n = w.size(like, self.axes.index("s"), len(self.axes))

            def take(table: np.ndarray) -> str:
                return w.Slice(w.const(table), w.ints(0), n, w.ints(0))
        else:
            ids = w.input("ids", *(("batch", "seq") if batched else ("seq",)), kind=np.int64, make=_positions)

            def take(table: np.ndarray) -> str:
                return w.Gather(w.const(table), ids, axis=0)

        rank = 3 if batched else 2
        if how == "one table of both":
            both = take(np.concatenate([np.sin(angles), np.cos(angles)], -1))
            if w.draw.choice("rope.both", ("Split", "Slice")) == "Split":
                sin, cos = w.split(both, -1, self.half, self.half)
            else:
                sin, cos = w.slice(both, rank - 1, 0, self.half), w.slice(both, rank - 1, self.half, self.rotated)
            return cos, sin, rank
        return take(np.cos(angles)), take(np.sin(angles)), rank

    def double(self, t: str, rank: int) -> str:
        """Of all channels: each number twice, for both of a pair."""
        w, h = self.w, self.half
        how = w.draw.choice("rope.double", ("Concat", "Expand", "Gather", "Tile"))
        if how == "Gather":
            places = np.arange(h).repeat(2) if self.pairs else np.tile(np.arange(h), 2)
            return w.Gather(t, w.const(places, np.int64), axis=rank - 1 if w.opset % 2 else -1)
        if how == "Concat" and not self.pairs:
            return w.Concat(t, t, axis=-1)
        if how == "Tile" and not self.pairs:
            return w.Tile(t, w.ints(*[1] * (rank - 1), 2))
        axis = rank if self.pairs else rank - 1
        one = w.unsqueeze(t, axis)
        if how == "Concat":
            two = w.Concat(one, one, axis=-1)
        elif how == "Tile":
            two = w.Tile(one, w.ints(*[2 if k == axis else 1 for k in range(rank + 1)]))
        else:
            two = w.Expand(one, w.ints(*[1] * (rank - 1), *((h, 2) if self.pairs else (2, h))))
        return w.reshape(two, *[0] * (rank - 1), self.rotated)

    def _broadcast(self, t: str, rank: int, reshaped: bool) -> tuple[str, int]:
        """Tables [batch, seq, width] or [seq, width] to the axes of x, and their rank then."""
        w, axes = self.w, self.axes
        width = self.rotated if self.wide else self.half
        if rank == 3 and axes == "sbnh":
            t = w.Transpose(t, perm=[1, 0, 2])
        there = ("sbh" if axes == "sbnh" else "bsh") if rank == 3 else "sh"
        start = min(axes.index(a) for a in there)
        if start and w.draw.choice("rope.leading", ("left out", "1")) == "1":
            start = 0
        new = [k - start for k, a in enumerate(axes) if a not in there and k >= start]
        if not reshaped:
            return w.unsqueeze(t, *new) if new else t, len(axes) - start
        place = {a: (t, there.index(a), rank) for a in there}
        shape = [1 if a not in there else width if a == "h" else place[a] for a in axes]
        return w.reshape(t, *shape), len(axes)

    # ---- turning

    def parts(self, x: str) -> tuple[str, str]:
        """The first and the second of each pair, of half the channels."""
        w, r, h = self.w, len(self.axes), self.half
        options = ("Slice", "Split", "Gather", "Reshape, Gather", "Reshape, Split", "Slice to the end")
        how = w.draw.choice("rope.parts", options)
        axis = r - 1
        if how in ("Slice", "Slice to the end"):
            end = 2**63 - 1 if how == "Slice to the end" else self.rotated
            if self.pairs:
                return w.slice(x, axis, 0, end, 2), w.slice(x, axis, 1, end, 2)
            return w.slice(x, axis, 0, h), w.slice(x, axis, h, end)
        if how == "Split" and not self.pairs:
            a, b = w.split(x, -1, h, h)
            return a, b
        if how == "Gather":
            places = np.arange(self.rotated).reshape((h, 2) if self.pairs else (2, h))
            first, second = (places[:, 0], places[:, 1]) if self.pairs else (places[0], places[1])
            return tuple(w.Gather(x, w.const(p, np.int64), axis=-1) for p in (first, second))  # type: ignore[return-value]
        apart = w.reshape(x, *[0] * (r - 1), *((h, 2) if self.pairs else (2, h)))
        at = r if self.pairs else r - 1
        if how == "Reshape, Gather":
            return tuple(w.Gather(apart, w.int(k), axis=at) for k in (0, 1))  # type: ignore[return-value]
        return tuple(w.squeeze(p, at) for p in w.split(apart, at, 1, 1))  # type: ignore[return-value]

    def join(self, a: str, b: str) -> str:
        w, r = self.w, len(self.axes)
        pairs = not self.pairs if w.draw.wrong("rope.joined otherwise") else self.pairs
        if not pairs and w.draw.choice("rope.join", ("Concat", "stack")) == "Concat":
            return w.Concat(a, b, axis=-1)
        axis = r if pairs else r - 1
        stacked = w.Concat(w.unsqueeze(a, axis), w.unsqueeze(b, axis), axis=axis)
        return w.reshape(stacked, *[0] * (r - 1), self.rotated)

    def swap(self, x: str) -> str:
        """(b, a) of each pair (a, b)."""
        w, r, h = self.w, len(self.axes), self.half
        how = w.draw.choice("rope.swap", ("parts", "Gather", "reversed Slice"))
        places = np.arange(self.rotated)
        places = places ^ 1 if self.pairs else np.roll(places, h)
        if w.draw.wrong("rope.shifted"):
            return w.Gather(x, w.const(np.roll(places, 1), np.int64), axis=-1)
        if how == "Gather":
            return w.Gather(x, w.const(places, np.int64), axis=-1)
        if how == "reversed Slice":
            apart = w.reshape(x, *[0] * (r - 1), *((h, 2) if self.pairs else (2, h)))
            return w.reshape(w.slice(apart, r if self.pairs else r - 1, -1, -3, -1), *[0] * (r - 1), self.rotated)
        a, b = self.parts(x)
        return self.join(b, a)

    def signs(self) -> np.ndarray:
        ones = np.ones(self.half)
        s = np.stack([-ones, ones], -1).ravel() if self.pairs else np.concatenate([-ones, ones])
        if self.w.draw.wrong("rope.an uneven sign"):
            s[1] = -s[1]
        return s

    def __call__(self, x: str, t: Tables) -> str:
        w, turn = self.w, self.turn
        if turn in ("signs in the table", "signs behind the swap"):
            by = w.const(self.signs())
            if turn == "signs in the table":
                return w.add(w.mul(x, t.cos), w.mul(self.swap(x), w.mul(t.sin, by)))
            return w.add(w.mul(x, t.cos), w.mul(w.mul(self.swap(x), by), t.sin))
        if turn == "matrix":
            m = np.zeros((self.rotated, self.rotated))
            places = np.arange(self.rotated).reshape((self.half, 2) if self.pairs else (2, self.half))
            first, second = (places.T if self.pairs else places)[:2]
            m[second, first], m[first, second] = -1, 1
            return w.add(w.mul(x, t.cos), w.mul(w.MatMul(x, w.const(m)), t.sin))
        if turn == "2x2 matrices":
            return self._matrices(x, t)
        a, b = self.parts(x)
        if w.draw.wrong("rope.halves of another"):
            b = w.Abs(b)
        if turn == "rotate":
            turned = self.join(a, w.negative(b)) if w.draw.wrong("rope.not swapped") else self.join(w.negative(b), a)
            if w.draw.wrong("rope.no sign"):
                turned = self.join(b, a)
            return w.add(w.mul(x, t.cos), w.mul(turned, t.sin))
        if turn == "x c - rotate-back(x) s":
            back = self.join(b, w.negative(a))
            if w.draw.wrong("rope.plus"):
                back = self.join(b, w.Abs(a))
            return w.Sub(w.mul(x, t.cos), w.mul(back, t.sin))
        second = w.add(w.mul(b, t.cos), w.mul(a, t.sin))
        if w.draw.wrong("rope.plus"):
            return self.join(w.add(w.mul(a, t.cos), w.mul(b, t.sin)), second)
        if turn == "halves, negated b":
            return self.join(w.add(w.mul(a, t.cos), w.mul(w.negative(b), t.sin)), second)
        return self.join(w.Sub(w.mul(a, t.cos), w.mul(b, t.sin)), second)

    def _matrices(self, x: str, t: Tables) -> str:
        """Flux: pe[..., 0] * x[..., 0] + pe[..., 1] * x[..., 1] with the matrices [[cos, -sin], [sin, cos]]."""
        w, r = self.w, len(self.axes)
        minus = t.sin if w.draw.wrong("rope.plus") else w.negative(t.sin)
        if w.draw.choice("rope.matrices", ("of columns", "of four")) == "of four":
            four = w.Concat(*(w.unsqueeze(e, -1) for e in (t.cos, minus, t.sin, t.cos)), axis=-1)
            pe = w.reshape(four, *[0] * t.rank, 2, 2)
        else:
            columns = [
                w.Concat(w.unsqueeze(top, -1), w.unsqueeze(bottom, -1), axis=-1)
                for top, bottom in ((t.cos, t.sin), (minus, t.cos))
            ]
            pe = w.Concat(*(w.unsqueeze(c, -1) for c in columns), axis=-1)
        apart = w.reshape(x, *[0] * (r - 1), self.half, 1, 2)
        made = [w.mul(w.Gather(pe, w.int(k), axis=-1), w.Gather(apart, w.int(k), axis=-1)) for k in (0, 1)]
        return w.reshape(w.add(*made), *[0] * (r - 1), self.rotated)


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: bool) -> np.ndarray:
    """In float64, of the last axis; cosines and sines of half of it."""
    h = cos.shape[-1]
    rest = x[..., 2 * h :]
    a, b = (x[..., 0 : 2 * h : 2], x[..., 1 : 2 * h : 2]) if pairs else (x[..., :h], x[..., h : 2 * h])
    first, second = a * cos - b * sin, b * cos + a * sin
    y = np.stack([first, second], -1).reshape(*a.shape[:-1], 2 * h) if pairs else np.concatenate([first, second], -1)
    return np.concatenate([y, rest], -1)


def angles_of(f: Arrays, seq: int, width: int) -> np.ndarray:
    """[batch or 1, seq, half] in float64."""
    if "angles" in f:
        return f["angles"][None]
    ids = f.get("ids", np.arange(seq))
    return np.reshape(ids, (-1, seq))[..., None] * inverse(width)


def scaling(w: Writer) -> float:
    return {"* 1.2": 1.2, "/ 0.8": 1.25}.get(w.draw.chosen.get("rope.scaling", ""), 1.0)


def partly(w: Writer, x: str, rotation: Rotation, tables: Tables, rank: int, width: int) -> str:
    """The first channels rotated, the others as they are."""
    if rotation.rotated == width:
        return rotation(x, tables)
    if w.draw.choice("rope.rest", ("Slice", "Split")) == "Split":
        first, rest = w.split(x, -1, rotation.rotated, width - rotation.rotated)
    else:
        first, rest = w.slice(x, rank - 1, 0, rotation.rotated), w.slice(x, rank - 1, rotation.rotated, width)
    return w.Concat(rotation(first, tables), rest, axis=-1)


def rope(draw: Drawing, prefix: str = "") -> Spelling:
    w = Writer(draw, prefix, SIZES, ("float32", "float16"))  # onnxruntime has no rotation of doubles
    layout = draw.choice("rope.layout", ("BNSH", "BSNH", "[B,S,N*H]", "SBNH", "SNH", "NSH", "BSH"))
    flat, layout = layout == "[B,S,N*H]", "BNSH" if layout == "[B,S,N*H]" else layout
    axes = LAYOUTS[layout]
    sizes: dict[str, int | str] = {"b": "batch", "s": "seq", "n": HEADS, "h": WIDTH}
    if flat:
        given = w.input("x", "batch", "seq", HEADS * WIDTH)
        x = w.Transpose(w.reshape(given, 0, 0, HEADS, WIDTH), perm=[0, 2, 1, 3])
    else:
        x = w.input("x", *(sizes[a] for a in axes))
    width = WIDTH if draw.choice("rope.width", ("all", "half")) == "all" else WIDTH // 2
    rotation = Rotation(w, layout, width)
    tables = rotation.tables(x)
    w.output(partly(w, x, rotation, tables, len(axes), WIDTH), len(axes))
    by = scaling(w)

    def reference(f: Arrays) -> list[np.ndarray]:
        x = f["x"]
        if flat:
            x = x.reshape(*x.shape[:2], HEADS, WIDTH).transpose(0, 2, 1, 3)
        order = [axes.index(a) for a in "bnsh" if a in axes]
        moved = x.transpose(order)
        angles = angles_of(f, moved.shape[-2], width)
        if "b" in axes and "n" in axes:
            angles = angles[:, None]
        y = rotated(moved, np.cos(angles) * by, np.sin(angles) * by, rotation.pairs)
        return [y.transpose(np.argsort(order))]

    return w.finish(reference, {"RotaryEmbedding": 1}, LONGEST)
