"""Small graphs of all layout operators come to an end: no law and its mirror make ever larger terms of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph import saturate_and_extract

GRAPHS = 80
TOGETHER = 10  # of one model


class Part:
    """One chain of operators on an input of its own. Sizes are numbers, or symbols as (name, number)."""

    def __init__(self, name: str, seed: int) -> None:
        self.rng, self.name = np.random.default_rng([seed, 7]), name
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        sizes = self.rng.permutation([1, 2, 3, 4, 6])[: int(self.rng.integers(1, 5))]
        self.shape = tuple(int(n) for n in sizes)
        symbols = [bool(self.rng.integers(2)) for _ in self.shape]
        self.fixed = not any(symbols)
        dims = [f"{name}{i}" if s else n for i, (n, s) in enumerate(zip(self.shape, symbols, strict=True))]
        self.input = h.make_tensor_value_info(name, T.FLOAT, dims)
        x = self._near(name)
        for _ in range(int(self.rng.integers(1, 3))):
            x = self._near(self._there_and_back(x))
        self.output = h.make_tensor_value_info(x, T.FLOAT, None)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        out = f"{self.name} {kind} {len(self.nodes)}"
        self.nodes.append(h.make_node(kind, list(inputs), [out], **attributes))
        return out

    def const(self, array: object, kind: type = np.int64) -> str:
        name = f"{self.name} c{len(self.constants)}"
        self.constants.append(nh.from_array(np.asarray(array, kind), name))
        return name

    def pick(self, *choices: Callable[[], str]) -> str:
        return choices[int(self.rng.integers(len(choices)))]()

    def _near(self, x: str) -> str:
        """Something that laws move through layouts, or nothing."""
        number = float(self.rng.choice([0.5, -1.0, 3.0, 0.0]))
        c, d = (self.const(n if self.rng.integers(2) else [n], np.float32) for n in (number, number or 0.25))
        return self.pick(
            lambda: x, lambda: self.op("Mul", x, c), lambda: self.op("Div", x, d), lambda: self.op("Neg", x),
            lambda: self.op("Sub", c, x), lambda: self.op("Sub", x, c), lambda: self.op("Add", x, c),
            lambda: self.op("Sub", c, self.op("Mul", x, d)),
            lambda: self.op("Cast", self.op("Cast", x, to=T.DOUBLE), to=T.FLOAT),
        )  # fmt: skip

    def _there_and_back(self, x: str) -> str:
        shape, rank = self.shape, len(self.shape)
        axis = int(self.rng.integers(rank))
        perm = [int(i) for i in self.rng.permutation(rank)]
        a, half = self.const([axis]), self.const([shape[axis] // 2])
        return self.pick(
            lambda: self._back(x, self.op("Reshape", x, self.const([-1]))),
            lambda: self._back(x, self.op("Reshape", x, self.const([0] * (rank - 1) + [1, -1]))),
            lambda: self._back(x, self.op("Reshape", x, self.const([0] * axis + [-1]))),
            lambda: self._back(x, self.op("Flatten", x, axis=axis)),
            lambda: self._back(x, self.op("Reshape", self.op("Flatten", x, axis=axis), self.const([1, -1, 1]))),
            lambda: self._turned_back(self.op("Transpose", x, perm=perm), perm),
            lambda: self._back(x, self._turned_back(self.op("Transpose", x, perm=perm), perm)),
            lambda: self.op("Squeeze", self.op("Unsqueeze", x, a), a),
            lambda: self._back(x, self.op("Unsqueeze", x, a)),
            lambda: self.op("Concat", self.op("Slice", x, self.const([0]), half, a),
                            self.op("Slice", x, half, self.const([2**31]), a), axis=axis),
            lambda: self.op("Expand", x, self.op("Shape", x)),
        )  # fmt: skip

    def _turned_back(self, y: str, perm: list[int]) -> str:
        return self.op("Transpose", y, perm=[int(i) for i in np.argsort(perm)])

    def _back(self, x: str, y: str) -> str:
        """y reshaped to what x is, the sizes written in one of the ways there are."""
        free = int(self.rng.integers(len(self.shape)))
        numbers = [-1 if i == free else n for i, n in enumerate(self.shape)]
        if not self.fixed:
            return self.op("Reshape", y, self.op("Shape", x if self.rng.integers(2) else self.name))
        return self.op("Reshape", y, self.pick(lambda: self.op("Shape", x), lambda: self.const(numbers)))


@pytest.mark.parametrize("first", range(0, GRAPHS, TOGETHER))
def test_layouts_there_and_back_saturate(first: int) -> None:
    parts = [Part(f"x{seed}", seed) for seed in range(first, first + TOGETHER)]
    graph = h.make_graph(
        [n for p in parts for n in p.nodes], "layouts", [p.input for p in parts], [p.output for p in parts],
        [c for p in parts for c in p.constants],
    )  # fmt: skip
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    result = saturate_and_extract(model)
    assert not result.report.limits, result.report.text()
