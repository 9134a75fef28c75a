"""The numeric meaning of terms: one side of a rule on arrays.

Terms are evaluated as ONNX would run them: operands of an elementwise operator share their element type, slices of
constant bounds are in range, a quarter turn needs an even last axis. What a model cannot hold is `IllFormed`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import TENSOR, IllFormed, Op
from .dtypes import NAMES
from .expression import Env, Expr

_BAD = (ValueError, IndexError, TypeError, ArithmeticError, AttributeError)


def evaluate(e: Expr, env: Env, *, wide: bool = False) -> Any:
    """The value of a term. `wide` computes in float64: floating leaves and casts to floating types become float64.

    Raises IllFormed where the operator does not take the operands, KeyError for a variable env does not bind.
    """
    if e.head == "var":
        value = env[e.args[0]]
        if wide and isinstance(value, list):
            return [widened(v) for v in value]
        return widened(value) if wide else value
    if e.op is None or e.head in ("dim", "elem"):
        try:
            return widened(e.value(env)) if wide else e.value(env)
        except ArithmeticError as error:
            raise IllFormed(str(error)) from error
    return apply(e.op, [evaluate(a, env, wide=wide) for a in e.args], wide=wide)


def apply(op: Op, args: list[Any], *, wide: bool = False) -> Any:
    """`op` on evaluated operands, as an array where it makes a tensor. Raises IllFormed."""
    if op.numpy is None:
        raise IllFormed(f"{op.name} has no numeric meaning")
    tensors = [a for a, s in op.with_sorts(args) if s == TENSOR and a is not None]
    _check(op, args, tensors)
    if wide and op.name == "Cast" and tensors[0].dtype.kind == "f" and NAMES[args[1]].startswith("float"):
        return tensors[0]
    try:
        with np.errstate(all="ignore"):
            value = op.numpy(*args)
    except _BAD as error:
        raise IllFormed(f"{op.name}: {error}") from error
    if op.out != TENSOR or value is None:
        return value
    return widened(np.asarray(value)) if wide else np.asarray(value)


def widened(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def _check(op: Op, args: list[Any], tensors: list[np.ndarray]) -> None:
    """Raises IllFormed for operands the term's declaration excludes."""
    operands = {name: a for a, (name, _) in zip(args, op.operands, strict=True) if a is not None}
    if len({operands[name].dtype for name in op.same if name in operands}) > 1:
        raise IllFormed(f"{op.name} of different element types")
    if op.boolean and tensors[0].dtype != bool:
        raise IllFormed(f"{op.name} of numbers")
    if op.floating and tensors[0].dtype.kind != "f":
        raise IllFormed(f"{op.name} of {tensors[0].dtype}")
    if op.requires is not None:
        op.requires(*args)
