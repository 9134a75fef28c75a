"""Forms of GELU (Hendrycks & Gimpel, arXiv 1606.08415) and their stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import erf, sigmoid
from .op import NodeReader, NodeView, Op, array, declare, form, refusing


def _fast_gelu(x: np.ndarray) -> np.ndarray:
    return array(0.5 * x.astype(np.float64) * _tanh_plus(x.astype(np.float64))).astype(x.dtype)


def _tanh_plus(x: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(0.7978845608028654 * _cubic(x.astype(np.float64)))).astype(x.dtype)


def _cubic(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    with np.errstate(over="ignore"):  # beyond what float16 holds: inf
        return array(y + 0.044715 * y**3).astype(x.dtype)


def _quick_gelu(x: np.ndarray, alpha: float) -> np.ndarray:
    y = x.astype(np.float64)
    return array(y * sigmoid(alpha * y)).astype(x.dtype)


def _gelu(x: np.ndarray) -> np.ndarray:
    return array((x.astype(np.float64) * (1 + erf(x / np.sqrt(2.0))) / 2).astype(x.dtype))


def _erf_plus(x: np.ndarray) -> np.ndarray:
    return array((1 + erf(x / np.sqrt(2.0))).astype(x.dtype))


def _read_gelu(node: NodeView) -> tuple[Any, ...] | None:
    if node.string("approximate", "none") != "tanh":
        return ("Gelu", node.x())
    return ("FastGelu", node.x()) if node.dims() else None  # printed as an operator that takes no scalar


def _read_alone(name: str) -> NodeReader:
    """Without a second operand, which is a bias."""
    return lambda node: (name, node.x()) if node.count() == 1 else None


_MS = "com.microsoft::"

GELU = declare(
    "Gelu", "x", _gelu, "same", role="fused", floating=True,
    forms=(form(f"{_MS}Gelu", "x"), form("Gelu", "x", since=20)),
    reads={"Gelu": _read_gelu, f"{_MS}Gelu": _read_alone("Gelu")},
)  # fmt: skip
FAST_GELU = declare(
    "FastGelu", "x", _fast_gelu, "same", role="fused", floating=True, single=True,
    requires=refusing(lambda x: not x.ndim, "onnxruntime's FastGelu takes no scalar"),
    forms=(form(f"{_MS}FastGelu", "x"),), reads={f"{_MS}FastGelu": _read_alone("FastGelu")},
)  # fmt: skip
BIAS_GELU = declare(
    "BiasGelu", "x b", lambda x, b: _gelu(x + b), "same", role="fused", same="x b", weights="b", floating=True,
    requires=refusing(lambda x, b: b.shape != x.shape[-1:], "the bias of a BiasGelu is a vector of the last axis"),
    forms=(form(f"{_MS}BiasGelu", "x b"),),
    reads={f"{_MS}BiasGelu": lambda node: ("Gelu", ("Add", node.x(0), node.x(1)))},
)  # fmt: skip
QUICK_GELU = declare(
    "QuickGelu", "x alpha:f64", _quick_gelu, "same", role="fused", floating=True,
    forms=(form(f"{_MS}QuickGelu", "x", "alpha"),),
    reads={f"{_MS}QuickGelu": lambda node: ("QuickGelu", node.x(), node.float("alpha", 1.702))},
)  # fmt: skip

TERMS: tuple[Op, ...] = (
    declare("ErfPlus", "x", _erf_plus, "same", role="marker", floating=True),
    declare("Cubic", "x", _cubic, "same", role="marker", floating=True),
    declare("TanhPlus", "x", _tanh_plus, "same", role="marker", floating=True),
    GELU,
    FAST_GELU,
    BIAS_GELU,
    QUICK_GELU,
)
