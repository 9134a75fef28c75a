"""What a weight tells of the size of what it is applied to: the operator runs on no other.

Source: the operators' specifications, and the checks of onnxruntime's kernels where those allow more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ...egraph.terms.norm import WEIGHTED
from ..model.domains import DEFAULT, RUNTIME
from .dims import Dim
from .values import Operation

#: Adds to what the execution of a node proves.
Proof: TypeAlias = Callable[[Operation], None]


def _size(node: Operation, operand: int, axis: int) -> Dim | None:
    """The size of an operand along an axis, None where it is unknown or there is none."""
    dims = node[operand].dims
    return dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None


def _equal(node: Operation, a: Dim | None, b: Dim | None) -> None:
    if a is not None and b is not None and a != b:
        node.proves.equal.append((a, b))


def _product(node: Operation) -> None:
    """The inner sizes, of operands that attributes may turn."""
    _equal(node, _size(node, 0, -2 if node.attribute("transA", 0) else -1),
           _size(node, 1, -1 if node.attribute("transB", 0) else -2))  # fmt: skip


def _same(axis: int, weight: int, of_weight: int) -> Proof:
    """An axis of the first operand is as long as one of the weight."""
    return lambda node: _equal(node, _size(node, 0, axis), _size(node, weight, of_weight))


def _window(weight: int) -> Proof:
    """As many channels as a filter of one group has, for every group."""

    def prove(node: Operation) -> None:
        channels = _size(node, weight, 1)
        if channels is not None:
            _equal(node, _size(node, 0, 1), node.dims.mul(channels, node.attribute("group", 1)))

    return prove


def _normed(node: Operation) -> None:
    """The last axis, if it is what is normed; a weight of one element is broadcast."""
    data, weight = node[0].dims, node[1].dims
    vector = weight is not None and len(weight) == 1 and isinstance(weight[0], int) and weight[0] > 1
    if data and vector and node.attribute("axis", -1) in (-1, len(data) - 1):
        _equal(node, data[-1], _size(node, 1, 0))


def _blocks(node: Operation) -> None:
    _equal(node, _size(node, 0, -1), node.attribute("K", 0) or None)


TABLE: Mapping[tuple[str, str], Proof] = {
    **{(DEFAULT, kind): _normed for kind in WEIGHTED},
    (DEFAULT, "Gemm"): _product,
    (DEFAULT, "MatMulInteger"): _same(-1, 1, -2),
    (DEFAULT, "QLinearMatMul"): _same(-1, 3, -2),
    **{(RUNTIME, kind): _blocks for kind in ("MatMulNBits", "MatMulBnb4", "MatMulFpQ4")},
    **{(DEFAULT, kind): _window(1) for kind in ("Conv", "ConvInteger")},
    (DEFAULT, "QLinearConv"): _window(3),
    (DEFAULT, "ConvTranspose"): _same(1, 1, 0),
    **{(DEFAULT, kind): _same(1, 1, 0) for kind in ("BatchNormalization", "InstanceNormalization")},
    **{(DEFAULT, kind): _same(-1, 1, -1) for kind in ("LSTM", "GRU", "RNN")},
    **{(RUNTIME, kind): _same(-1, 2, 0) for kind in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
}
