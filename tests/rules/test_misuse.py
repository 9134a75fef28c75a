"""A mistake of who writes a rule or declares a term is told in one line when it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx_egraph.egraph.engine.facts import prelude
from onnx_egraph.egraph.engine.lang import Sides, Tensor, call, dim, eq, operator, rank, rule, scalar, supported
from onnx_egraph.egraph.errors import RuleError
from onnx_egraph.egraph.terms import declare


def bare(x) -> Sides:  # type: ignore[no-untyped-def]
    """-x = x"""
    return Sides(-x, x)


def plain(x: int) -> Sides:
    """-x = x"""
    return Sides(-x, x)  # type: ignore[arg-type]


def law(make: Callable[[Tensor], Any]) -> Callable[..., Any]:
    def r(x: Tensor) -> Any:
        """-x = x"""
        return make(x)

    r.__annotations__ = {"x": Tensor, "return": Sides}
    return r


SIDES = (lambda x: call("Abs", -x)), (lambda x: call("Abs", x))


def sides(when: Callable[[Tensor], Any]) -> Callable[..., Any]:
    return law(lambda x: Sides(SIDES[0](x), SIDES[1](x), when=when(x)))


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        (bare, {}, "parameter x wants a sort"),
        (plain, {}, "parameter x wants a sort"),
        (sides(lambda x: [rank(x) == 2]), {}, "when=\\[guards\\]"),
        (sides(lambda x: eq(rank(x), 2)), {}, "when=\\[guards\\]"),
        (law(lambda x: (-x, x)), {}, "a law returns Sides"),
        (law(lambda x: Sides(x * 2.0, x)), {}, "a number is written real"),
        (sides(lambda x: [eq(dim(x, -1), 4)]), {}, "a size is written num"),
        (sides(lambda x: [eq(scalar(x), 1)]), {}, "a value real"),
        (sides(lambda x: [supported("Sinn", x)]), {}, "asks for 'Sinn', and no term is named so"),
        (sides(lambda x: []), {"expand": {"k": (1, 2)}}, "expand names 'k'"),
        (sides(lambda x: []), {"holds": "b n"}, "a sample maps parameters"),
    ],
)
def test_a_rule(function: Callable[..., Any], arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(RuleError, match=says) as raised:
        rule(**{"holds": {"x": "b n"}, **arguments})(function)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("operands", "more", "says"),
    [
        ("x y:int", {}, "no sort is named 'int'"),
        ("x", {"role": "fuse"}, "no role is named 'fuse'"),
        ("x", {"same": "x c"}, "has no operand 'c'"),
        ("x", {"weights": "q"}, "has no operand 'q'"),
    ],
)
def test_a_declaration(operands: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(RuleError, match=says):
        declare("Mine", operands, np.abs, **more)


def test_a_shape_law_that_is_none() -> None:
    made = operator("Mine", "x", np.abs, onnx="my::Mine", shape="samee")
    with pytest.raises(RuleError, match="no shape law is named 'samee'"):
        prelude([made])
