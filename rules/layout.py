"""Layout: transposes compose and cancel, reshapes of the same size are nothing, added axes go away again."""

from __future__ import annotations

from ..egraph.engine.lang import (
    SWAP,
    Int,
    Ints,
    Sides,
    Tensor,
    at,
    call,
    count,
    dim,
    elem,
    eq,
    length,
    ne,
    num,
    rank,
    reshape,
    rule,
    sizes,
    slice_,
    squeeze,
    tensor,
    transpose,
    unsqueeze,
)


@rule(
    expand=dict(n=(2, 3, 4, 5, 6)),
    holds=[dict(x="b n s h", p=(0, 2, 1, 3), q=(0, 1, 3, 2)), dict(x="b n s", p=(2, 0, 1), q=(2, 0, 1))],
)  # fmt: skip
def transpose_transpose(x: Tensor, p: Ints, q: Ints, n: int) -> Sides:
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""
    both = Ints("vec-of", tuple(at(p, at(q, i)) for i in range(n)))
    return Sides(transpose(transpose(x, p), q), transpose(x, both), when=[eq(count(p), n), eq(count(q), n)])


@rule(expand=dict(n=(2, 3, 4, 5, 6)), holds=dict(x="b n s h"))
def transpose_nothing(x: Tensor, n: int) -> Sides:
    """transpose(x, 0123..) = x"""
    return Sides(transpose(x, tuple(range(n))), x, replaces=True)  # no model has it, and each would make others


@rule(holds=dict(x="b s h", axis=-3))
def squeeze_unsqueeze(x: Tensor, axis: Int) -> Sides:
    """squeeze(unsqueeze(x, axis), axis) = x"""
    return Sides(squeeze(unsqueeze(x, axis), axis), x)


@rule(holds=dict(x="b 1 h", axis=-2))
def unsqueeze_squeeze(x: Tensor, axis: Int) -> Sides:
    """unsqueeze(squeeze(x, axis), axis) = x"""
    return Sides(unsqueeze(squeeze(x, axis), axis), x)


@rule(holds=dict(x="b s h", axis=-3))
def unsqueeze_neg(x: Tensor, axis: Int) -> Sides:
    """unsqueeze(-x, axis) = -unsqueeze(x, axis)"""
    return Sides(unsqueeze(-x, axis), -unsqueeze(x, axis))


@rule(holds=[dict(x="b 8", axis=-1, start=1, end=6, step=2), dict(x="8 b", axis=-2, start=0, end=7, step=3)])
def slice_neg(x: Tensor, axis: Int, start: Int, end: Int, step: Int) -> Sides:
    """(-x)[start:end:step on axis] = -(x[start:end:step on axis])"""
    return Sides(slice_(-x, start, end, axis, step), -slice_(x, start, end, axis, step))


@rule(
    holds=[dict(x="b n s h", shape="ints b n s h"), dict(x="b", shape="ints b")],
    refuse=[dict(x="b n s", shape="ints n b s"), dict(x="b s", shape="ints s b"), dict(x="1 b s", shape="ints b s")],
)  # fmt: skip
def reshape_nothing(x: Tensor, shape: Tensor) -> Sides:
    """reshape(x, shape of x) = x"""
    same = reshape(x, shape)
    return Sides(same, x, when=[eq(sizes(same), sizes(x))])


@rule(
    holds=[dict(x="b n s", shape="ints b n s"), dict(x="b s", shape="ints 1 1")],
    refuse=[dict(x="1 s", shape="ints 5 s"), dict(x="b s", shape="ints 1 b s"), dict(x="b 1", shape="ints b 5"),
            dict(x="1 n s", shape="ints 5 n s"), dict(x="1 n s h", shape="ints 5 n s h")],
)  # fmt: skip
def expand_nothing(x: Tensor, shape: Tensor) -> Sides:
    """expand(x, shape) = x   if it has the sizes of x"""
    same = tensor("Expand", x, shape)
    return Sides(same, x, when=[eq(sizes(same), sizes(x))])


#: Ranks up to 4, each with one of its axes from the end.
_AXES = tuple((rank, axis) for rank in range(1, 5) for axis in range(1, rank + 1))


@rule(
    expand=dict(reading=range(-1, len(_AXES))),
    holds=[dict(x="b s n*h", shape="ints b s n h", u="ints 0 0 n*h"), dict(x="b*s", shape="ints b s", u="ints b*s"),
           dict(x="b s 4", shape="ints b 4s", u="ints 0 -1 4")],
    refuse=[dict(x="2 3 5", shape="ints 6 5", u="ints 3 2 5"), dict(x="2 3 5", shape="ints 6 5", u="ints 2 3 1 5"),
            dict(x="2 3 5 7", shape="ints 6 35", u="ints 3 2 5 7"), dict(x="2 3 5", shape="ints 6 5", u="ints 6 5"),
            dict(x="2 3 5 7 2", shape="ints 6 70", u="ints 3 2 5 7 2"),
            dict(x="2 3 5 7 2 2", shape="ints 6 140", u="ints 3 2 5 7 2 2")],
)  # fmt: skip
def reshape_back(x: Tensor, shape: Tensor, u: Tensor, reading: int) -> Sides:
    """reshape(reshape(x, shape), u) = x   for u that gives all sizes of x, or all but one, which is what remains"""
    back = reshape(reshape(x, shape), u)
    if reading < 0:
        return Sides(back, x, when=[eq(sizes(back), sizes(x))])
    n, rest = _AXES[reading]
    others = [eq(dim(back, -k), dim(x, -k)) for k in range(1, n + 1) if k != rest]
    return Sides(back, x, when=[eq(rank(x), n), eq(rank(back), n), *others])


@rule(
    holds=[dict(x="b s 1", shape="ints b s 1", axis=-1), dict(x="1 b s", shape="ints 1 b s", axis=-3)],
    refuse=[dict(x="b s 1", shape="ints 1 b s", axis=-1), dict(x="1 b", shape="ints b", axis=-2)],
)  # fmt: skip
def reshape_squeeze(x: Tensor, shape: Tensor, axis: Int) -> Sides:
    """reshape(squeeze(x, axis), shape of x) = x"""
    same = reshape(squeeze(x, axis), shape)
    return Sides(same, x, when=[eq(sizes(same), sizes(x))])


@rule(expand=dict(axis=(-2, -3)), holds=dict(x="b s h"))
def transpose_added_axis(x: Tensor, axis: int) -> Sides:
    """transpose(unsqueeze(x, -2), 0213) = unsqueeze(x, -3)   for x of rank 3, and the other way round"""
    return Sides(transpose(unsqueeze(x, axis), SWAP), unsqueeze(x, -5 - axis))


@rule(
    expand=dict(n=(1, 2, 3, 4, 5)),
    holds=[dict(x="b s h", shape="ints b*s h", u="ints b s h 1"), dict(x="b s h", shape="ints -1", u="ints -1 h")],
    refuse=[
        dict(x="2 3 5", shape="ints 6 5", u="ints 0 5"),
        dict(x="2 3 5", shape="ints 6 5", u="ints 6 0"),
        dict(x="2 15", shape="ints 3 2 5", u="ints 3 2 0"),
        dict(x="2 15", shape="ints 3 2 1 5", u="ints 3 2 1 0"),
        dict(x="2 15", shape="ints 3 2 1 1 5", u="ints 3 2 1 1 0"),
        dict(x="2 15", shape="ints 3 2 1 1 1 5", u="ints 3 2 1 1 1 0"),
    ],
)
def reshape_reshape(x: Tensor, shape: Tensor, u: Tensor, n: int) -> Sides:
    """reshape(reshape(x, shape), u) = reshape(x, u)   for u of numbers other than 0, which would copy a size"""
    numbers = [Int("var", (f"u{i}",)) for i in range(n)]
    known = [g for i, v in enumerate(numbers) for g in (eq(elem(u, i), num(v)), ne(v, 0))]
    return Sides(call("Reshape", call("Reshape", x, shape), u), call("Reshape", x, u), when=[eq(length(u), n), *known])
