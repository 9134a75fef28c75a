"""Booleans: what is joined by And and Or."""

from __future__ import annotations

from ..egraph.engine.lang import Sides, Tensor, all_false, all_true, call, eq, rule, sizes

_SHAPES = [
    ("1 s:bool", "2 1"),
    ("s:bool", "1 1"),
    ("b 1:bool", "1 5"),
    ("1 n s:bool", "5 1 1"),
    ("1 n s t:bool", "5 1 1 1"),
]


def _wider(word: str) -> list[dict[str, str]]:
    """Constants that widen what they are joined to."""
    return [dict(x=x, y=f"={word}:bool:{y}") for x, y in _SHAPES]


@rule(
    holds=[dict(x="b s:bool", y="=1:bool"), dict(x="b n s t:bool", y="=1:bool:1 1"), dict(x="s:bool", y="=1:bool")],
    refuse=[dict(x="b s:bool", y="=0:bool"), *_wider("1")],
)  # fmt: skip
def and_true(x: Tensor, y: Tensor) -> Sides:
    """x and true = x   where true does not widen it"""
    both = call("And", x, y)
    return Sides(both, x, when=[all_true(y), eq(sizes(both), sizes(x))])


@rule(
    holds=[dict(x="b s:bool", y="=0:bool"), dict(x="b n s t:bool", y="=0:bool:1 1"), dict(x="s:bool", y="=0:bool")],
    refuse=[dict(x="b s:bool", y="=1:bool"), *_wider("0")],
)  # fmt: skip
def or_false(x: Tensor, y: Tensor) -> Sides:
    """x or false = x   where false does not widen it"""
    both = call("Or", x, y)
    return Sides(both, x, when=[all_false(y), eq(sizes(both), sizes(x))])
