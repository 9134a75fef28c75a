"""An element of a tensor, as an expression: what a computation on symbols ends in."""

from __future__ import annotations

from typing import Any

from .polynomial import Polynomial

REDUCTIONS = ("sum", "max", "all")


class Value:
    """`kind` is "at" (args = tensor, indices), "number", "real" (a name), "integer" (a polynomial), "cast" (to, from,
    value), one of `REDUCTIONS` (size, index, value), or the name of a numpy function, of values.
    """

    __slots__ = ("_hash", "args", "kind")

    def __init__(self, kind: str, *args: Any) -> None:
        self.kind, self.args = kind, args
        self._hash = hash((kind, args))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Value)
            and (self._hash, self.kind, self.args) == (other._hash, other.kind, other.args)
        )  # fmt: skip

    def __repr__(self) -> str:
        if self.kind in ("number", "real", "integer"):
            return str(self.args[0])
        if self.kind == "at":
            return f"{self.args[0]}[{', '.join(map(str, self.args[1]))}]"
        return f"{self.kind}({', '.join(map(str, self.args))})"


_WHOLE = {"add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b}


def number(value: float | int | bool) -> Value:
    return Value("number", value)


def integer(p: Polynomial) -> Value:
    return Value("integer", p)


def applied(name: str, *values: Value) -> Value:
    """A function of values; of integers, that is an integer."""
    if name == "negative" and values[0].kind == "integer":
        return integer(-values[0].args[0])
    if name in _WHOLE and all(v.kind == "integer" for v in values):
        return integer(_WHOLE[name](*(v.args[0] for v in values)))
    return Value(name, *values)
