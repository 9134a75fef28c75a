"""Einsum as a MatMul between transposes: equal to numpy on random letters, and refused where one MatMul does not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnx_egraph.lowering.model.einsum import product
from onnx_egraph.lowering.shapes.inference import infer

SIZES = {"b": 2, "n": 3, "i": 4, "j": 5, "k": 6, "o": 1}


def shapes(equation: str) -> list[tuple[int | str, ...]]:
    return [tuple(SIZES[c] for c in term.strip()) for term in equation.split("->")[0].split(",")]


def value(spelled: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if isinstance(spelled, str):
        return x if spelled == "x" else y
    name, *operands = spelled
    if name == "Transpose":
        return value(operands[0], x, y).transpose(operands[1])
    assert name == "MatMul"
    return value(operands[0], x, y) @ value(operands[1], x, y)


@pytest.mark.parametrize("seed", range(20))
def test_random_letters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = "bn"[: rng.integers(3)]
    left, right, out = ("".join(rng.permutation(list(batch + letters))) for letters in ("ik", "kj", "ij"))
    check_product(f"{left},{right}->{out}", rng)


@pytest.mark.parametrize("equation", ["ik,kj", "ki,jk", " kj , ik "])
def test_a_result_left_out_has_the_letters_that_occur_once(equation: str) -> None:
    check_product(equation, np.random.default_rng(0))


def check_product(equation: str, rng: np.random.Generator) -> None:
    x, y = (rng.normal(size=shape) for shape in shapes(equation))
    spelled = product(equation, "x", "y", shapes(equation))
    assert np.allclose(value(spelled, x, y), np.einsum(equation, x, y), rtol=1e-12), equation


@pytest.mark.parametrize("equation", [
    "bik,bkj", "ik,kj->i", "ik,kj->ijo", "iik,kj->ij", "bik,kj->ij", "ik,jk->kij", "bik,bkj->bbij", "i,j->ij",
    "ik,ik->i", "...ik,...kj->...ij", "bnik,bkj->bnij", "ik,kj,jn->in", "ikn,knj->ij",
])  # fmt: skip
def test_what_one_matmul_does_not_do(equation: str) -> None:
    known = shapes(equation) if "." not in equation else [(2, 3), (3, 4)]
    assert product(equation, "x", "y", known) is None


def test_a_size_that_may_be_stretched_is_no_matmul() -> None:
    assert product("ik,kj->ij", "x", "y", [(2, "k"), ("m", 3)]) == ("Contract", "x", "y")
    assert product("ik,kj->ij", "x", "y", [(2, "k"), (1, 3)]) == ("Contract", "x", "y")
    assert product("ik,kj->ij", "x", "y", [(2, 4), (1, 3)]) is None
    assert product("ik,kj->ij", "x", "y", [(2, 3), None]) is None
    assert product("ik,kj->ij", "x", "y", [(2, "k"), ("k", 3)]) == ("MatMul", "x", "y")


def test_a_letter_has_the_larger_of_its_sizes() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[1,s,4] x, float[b,4,6] y) => (float[n,m] z, int64[k] size) {
        e = Einsum <equation = "bij,bjk->bik"> (x, y)
        to = Constant <value_ints = [0, -1]> ()
        z = Reshape (e, to)
        size = Shape (e)
    }"""
    model = onnx.parser.parse_model(text)
    read = ir.from_proto(model)
    shapes = infer(read)
    assert shapes.of(read.graph.node(0).outputs[0]).dims == ("b", "s", 6)
