"""RMSNorm and LayerNorm over the last axis."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .arithmetic import quiet
from .op import NODE, IllFormed, NodeReader, NodeView, Op, array, declare, form


def rnorm(x: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) over the last axis, computed wide (Zhang & Sennrich, arXiv 1910.07467)."""
    wide = x.astype(np.float64)
    return array(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps)).astype(x.dtype)


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    return array(rnorm(x.astype(np.float64), eps) * w).astype(x.dtype)


def layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    normed = rnorm(wide - wide.mean(-1, keepdims=True), eps) * w
    return array(normed if b is None else normed + b).astype(x.dtype)


def _skipped(x: np.ndarray, skip: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """The sum that a skip norm is of, wide."""
    wide = x.astype(np.float64) + skip
    return array(wide if bias is None else wide + bias)


def skip_rms_norm(
    x: np.ndarray, skip: np.ndarray, w: np.ndarray, bias: np.ndarray | None, eps: float
) -> list[np.ndarray | None]:  # fmt: skip
    """com.microsoft SkipSimplifiedLayerNormalization: the norm of x + skip + bias, and at the last place the sum."""
    total = _skipped(x, skip, bias)
    return [rms_norm(total, w, eps).astype(x.dtype), None, None, total.astype(x.dtype)]


def skip_layer_norm(
    x: np.ndarray, skip: np.ndarray, w: np.ndarray, b: np.ndarray | None, bias: np.ndarray | None, eps: float
) -> list[np.ndarray | None]:  # fmt: skip
    """com.microsoft SkipLayerNormalization, the same with a LayerNormalization."""
    total = _skipped(x, skip, bias)
    return [layer_norm(total, w, b, eps).astype(x.dtype), None, None, total.astype(x.dtype)]


def _skip_fits(x: np.ndarray, skip: np.ndarray, *vectors_and_epsilon: Any) -> None:
    if x.shape != skip.shape or x.ndim not in (2, 3):
        raise IllFormed("a skip norm adds two tensors of one shape, of rank 2 or 3")
    _vectors(x, *vectors_and_epsilon)


def _vectors(x: np.ndarray, *weights_and_epsilon: Any) -> None:
    if any(w is not None and w.shape != x.shape[-1:] for w in weights_and_epsilon[:-1]):
        raise IllFormed("scale and bias are vectors of the last axis")


def _plain(node: NodeView) -> bool:
    """Over the last axis, in float32, and only the normalized value is used."""
    return node.last_axis("axis", -1) and node.only_first_output() and node.int("stash_type", 1) == 1


def _read_layer_norm(node: NodeView) -> tuple[Any, ...] | None:
    if not _plain(node):
        return None
    bias = node.x(2) if node.present(2) else ("Absent",)
    return ("LayerNorm", node.x(0), node.x(1), bias, node.float("epsilon", 1e-5))


def _read_rms_norm(node: NodeView) -> tuple[Any, ...] | None:
    return ("RMSNorm", node.x(0), node.x(1), node.float("epsilon", 1e-5)) if _plain(node) else None


def _read_skip(name: str, bias: int) -> NodeReader:
    """As the norm of a sum, and the sum; `bias` is the place of what is added besides. x is as large as the sum: of a
    smaller one onnxruntime drops rows. None where somebody takes the mean or the deviation.
    """

    def read(node: NodeView) -> list[tuple[Any, ...] | None] | None:
        x, skip = node.dims(0), node.dims(1)
        if x is None or skip is None or skip not in (x, (1, *x[1:]), x[1:]) or node.takes(1) or node.takes(2):
            return None
        first = ("Add", node.x(0), node.x(bias)) if node.present(bias) else node.x(0)
        total = ("Add", first, node.x(1))
        vectors = [node.x(i) if node.present(i) else ("Absent",) for i in range(2, bias)]
        return [(name, total, *vectors, node.float("epsilon", 1e-12)), None, None, total]

    return read


_SIMPLIFIED, _RMS, _LAYER = "SimplifiedLayerNormalization", "RMSNormalization", "LayerNormalization"
_SKIP_RMS, _SKIP_LAYER = (f"com.microsoft::Skip{kind}" for kind in (_SIMPLIFIED, _LAYER))

TERMS: tuple[Op, ...] = (
    declare("RSqrt", "x", quiet(lambda x: 1 / np.sqrt(x)), "same", role="marker", floating=True, common=True),
    declare("RNorm", "x eps:f64", rnorm, "same", role="marker", floating=True),
    declare("Center", "x", lambda x: (x - x.mean(-1, keepdims=True)).astype(x.dtype), "same", role="marker"),
    declare(
        "RMSNorm", "x w eps:f64", rms_norm, "same", role="fused", same="x w", weights="w", floating=True,
        requires=_vectors,
        forms=(form(_SIMPLIFIED, "x w", "axis:-1 epsilon=eps stash_type:1"),
               form(_RMS, "x w", "axis:-1 epsilon=eps stash_type:1", since=23)),
        reads={_RMS: _read_rms_norm, _SIMPLIFIED: _read_rms_norm},
    ),
    declare(
        "LayerNorm", "x w b eps:f64", layer_norm, "same", role="fused", same="x w b", weights="w b", floating=True,
        requires=_vectors, forms=(form(_LAYER, "x w b", "axis:-1 epsilon=eps"),), reads={_LAYER: _read_layer_norm},
    ),
    # Of their four results the first is the norm, and the last the sum that it is of.
    declare(
        "SkipRMSNorm", "x skip w bias eps:f64", skip_rms_norm, out=NODE, dtype="", role="fused",
        same="x skip w bias", weights="w bias", floating=True, requires=_skip_fits,
        forms=(form(_SKIP_RMS, "x skip w bias", "epsilon=eps", outputs="4?"),),
        reads={_SKIP_RMS: _read_skip("RMSNorm", 3)},
    ),
    declare(
        "SkipLayerNorm", "x skip w b bias eps:f64", skip_layer_norm, out=NODE, dtype="", role="fused",
        same="x skip w b bias", weights="w b bias", floating=True, requires=_skip_fits,
        forms=(form(_SKIP_LAYER, "x skip w b bias", "epsilon=eps", outputs="4?"),),
        reads={_SKIP_LAYER: _read_skip("LayerNorm", 4)},
    ),
)  # fmt: skip

_FORMS = [form for op in TERMS if op.role == "fused" for form in op.forms if not form.domain]
#: Operators that onnxruntime has in every operator set: name -> the one that ONNX has it since.
EARLY: Mapping[str, int] = MappingProxyType({_LAYER: 17})
#: Operators of the default domain that norm the last axis by a weight.
WEIGHTED = frozenset(form.kind for form in _FORMS)
#: Those of onnxruntime's own, and the same in any operator set; ONNX took up one of them.
UNVERSIONED = frozenset(form.kind for form in _FORMS if form.since == 1)
