"""Elementwise operators, reductions and matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .dtypes import NAMES
from .op import IllFormed, NodeView, Op, array, declare, form, refusing


def quiet(f: Callable[..., Any]) -> Callable[..., Any]:
    """f without numpy's warnings: infinities and NaN are values like others."""

    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*args)

    return call


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return array(e / e.sum(axis=axis, keepdims=True)).astype(x.dtype)


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    d = x - x.max(axis=axis, keepdims=True)
    return array(d - np.log(np.exp(d).sum(axis=axis, keepdims=True))).astype(x.dtype)


def erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf as of_float64

    return array(of_float64(x.astype(np.float64))).astype(x.dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "iu":
        quotient = np.abs(x) // np.abs(y)
        return array(np.where((x < 0) != (y < 0), -quotient, quotient)).astype(x.dtype)
    return array(x / y)


def _mean(x: np.ndarray, axes: tuple[int, ...], keep: int) -> np.ndarray:
    return _kept(np.mean(x, axis=axes, dtype=np.float64), axes, keep).astype(x.dtype)


def _sum(x: np.ndarray, axes: tuple[int, ...], keep: int) -> np.ndarray:
    return _kept(np.sum(x, axis=axes, dtype=x.dtype), axes, keep)


def _kept(reduced: np.ndarray | np.generic, axes: tuple[int, ...], keep: int) -> np.ndarray:
    return np.expand_dims(reduced, axes) if keep else array(reduced)


def _contract(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The matrix product that an Einsum is: of two sizes it sums over, one may be 1 and is stretched."""
    n = y.shape[-2] if x.shape[-1] == 1 else x.shape[-1]
    if y.shape[-2] not in (1, n):
        raise IllFormed("an Einsum sums over one size")
    rows, columns = (*x.shape[:-1], n), (*y.shape[:-2], n, y.shape[-1])
    return array(np.matmul(np.broadcast_to(x, rows), np.broadcast_to(y, columns)))


def _reduction(name: str, axes_are_input_since: int) -> tuple[Any, ...]:
    """Axes are an attribute before that operator set."""
    before = form(name, "x", "axes keepdims=keep")
    return before, form(name, "x axes", "keepdims=keep", since=axes_are_input_since)


def _clip_below(x: np.ndarray, low: np.ndarray) -> np.ndarray:
    """The upper bound of a Clip without one is the largest number of the type."""
    largest = np.finfo(x.dtype).max if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    return array(np.minimum(np.maximum(x, low), largest))


def _read_clip(node: NodeView) -> tuple[Any, ...] | None:
    """One that has a lower bound alone."""
    bounded = node.count() > 1 and node.present(1) and not node.present(2)
    return ("ClipBelow", node.x(), node.x(1)) if bounded and node.dims(1) == () else None


def _unary(name: str, f: Callable[..., Any], *, floating: bool = True, **more: Any) -> Op:
    return declare(name, "x", quiet(f), "same", floating=floating, **more)


def _binary(name: str, f: Callable[..., Any], *, exact: bool = True, same: str = "x y", **more: Any) -> Op:
    return declare(name, "x y", quiet(f), "broadcast", same=same, exact=exact, **more)


def _comparison(name: str, f: Callable[..., Any], *, commutative: bool = False) -> Op:
    return _binary(name, f, dtype="bool", commutative=commutative)


TERMS: tuple[Op, ...] = (
    _unary("Neg", np.negative, floating=False, exact=True, folds=True),
    _unary("Sqrt", np.sqrt, folds=True),
    _unary("Reciprocal", np.reciprocal, folds=True),
    _unary("Cos", np.cos),
    _unary("Sin", np.sin, odd=True),
    _unary("Tanh", np.tanh, odd=True),
    _unary("Exp", np.exp, masked=True),
    _unary("Log", np.log),
    _unary("Abs", np.abs, floating=False, exact=True),
    _unary("Erf", erf, odd=True),
    _unary("Sigmoid", sigmoid),
    declare("Not", "x", np.logical_not, "same", boolean=True, exact=True),
    declare("IsNaN", "x", np.isnan, "same", dtype="bool", floating=True),
    declare(
        "Cast", "x to:i64", quiet(lambda x, to: x.astype(NAMES[to])), "same", dtype="cast", weights="x", exact=True,
        folds=True, symbolic="cast",
    ),
    _binary("Add", np.add, commutative=True, weights="x y", folds=True, infix=(" + ", 1)),
    _binary("Mul", np.multiply, commutative=True, weights="x y", folds=True, scales=True, infix=("*", 2)),
    _binary("Sub", np.subtract, folds=True, infix=(" - ", 1)),
    _binary("Div", _divide, folds=True, positive=True, scales=True, infix=("/", 2)),
    _binary(
        "Pow", lambda x, y: np.power(x, y.astype(x.dtype)), exact=False, same="", folds=True, positive=True,
        infix=("**", 3),
    ),
    _binary("Max", np.maximum, commutative=True),
    _unary("Relu", lambda x: np.maximum(x, 0).astype(x.dtype), floating=False),
    declare(
        "ClipBelow", "x low", _clip_below, "same", same="x low",
        requires=refusing(lambda x, low: low.ndim > 0, "a bound of Clip is a scalar"),
        forms=(form("Clip", "x low", since=11),), reads={"Clip": _read_clip},
    ),
    _binary("And", np.logical_and, commutative=True, boolean=True),
    _binary("Or", np.logical_or, commutative=True, boolean=True),
    _comparison("Equal", np.equal, commutative=True),
    _comparison("Less", np.less),
    _comparison("LessOrEqual", np.less_equal),
    _comparison("Greater", np.greater),
    _comparison("GreaterOrEqual", np.greater_equal),
    declare("Where", "c x y", np.where, "where", dtype="second", same="x y", moves="x y", exact=True,
            requires=refusing(lambda c, x, y: c.dtype != bool, "a choice is made by a boolean")),
    declare(
        "Selected", "x c side:i64", lambda x, c, side: np.where(c == bool(side), x, np.zeros_like(x)), "broadcast",
        role="marker", requires=refusing(lambda x, c, side: c.dtype != bool, "a choice is made by a boolean"),
        common=True, doc="x where c is that side, and 0 elsewhere",
    ),
    declare("MatMul", "x y", quiet(np.matmul), "matmul", same="x y", weights="x y", infix=(" @ ", 2)),
    declare("Product", "x y", quiet(np.matmul), "matmul", same="x y", weights="x y", infix=(" @ ", 2), plain="MatMul",
            forms=(form("MatMul", "x y"),)),
    declare("Contract", "x y", quiet(_contract), "matmul", role="marker", same="x y", common=True),
    declare("Softmax", "x axis:i64", quiet(softmax), "same", floating=True, implied=True, masked=True),
    declare("LogSoftmax", "x axis:i64", quiet(_log_softmax), "same", floating=True, implied=True, masked=True),
    declare(
        "Scaled", "x by:f64", quiet(lambda x, by: array(x * np.float64(by)).astype(x.dtype)), "same",
        symbolic="scaled",
        role="marker", floating=True, common=True,
    ),
    declare(
        "ReduceMean", "x axes:IV keep:i64", _mean, "reduce", forms=_reduction("ReduceMean", 18), short="mean",
    ),
    declare("ReduceSum", "x axes:IV keep:i64", _sum, "reduce", forms=_reduction("ReduceSum", 13), short="sum"),
    declare(
        "ReduceMax", "x axes:IV keep:i64", lambda x, axes, keep: _kept(np.max(x, axis=axes), axes, keep), "reduce",
        forms=_reduction("ReduceMax", 18), short="max",
    ),
    declare("Range", "start limit step", lambda a, b, c: np.arange(a, b, c, dtype=a.dtype), "range", exact=True,
            symbolic="range"),
)  # fmt: skip
