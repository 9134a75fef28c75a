"""Faults planted into the product, to see that the fuzzers see them.

What drops an attribute of a fused operator is seen
by tests/rules/test_attributes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onnx_egraph import run, settings
from onnx_egraph.egraph.engine.lang import (
    Guard,
    Int,
    Ints,
    Sides,
    Tensor,
    at,
    call,
    cast,
    count,
    dtype,
    eq,
    lt,
    rank,
    rule,
    transpose,
)
from onnx_egraph.egraph.engine.rule import Rule
from onnx_egraph.egraph.terms import Op
from onnx_egraph.lowering import emit, reader, space, writer
from onnx_egraph.lowering.model import wellformed
from onnx_egraph.lowering.shapes import inference as shapes
from onnx_egraph.lowering.shapes import moves as shape_moves
from onnx_egraph.rules import ALL

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Planted:
    """A fault, the fuzzer that sees it, a seed that shows it, and as what kind of fault."""

    name: str
    fuzzer: str
    seed: int
    seen: str
    plant: Callable[[Patch], None]


# ---- rules


def without_guard(patch: Patch, name: str, drops: Callable[[Guard], bool]) -> None:
    """A rule of the product loses the guards that `drops` says."""

    def changed(r: Rule) -> Rule:
        sides = tuple(replace(s, when=[g for g in s.when if not drops(g)]) for s in r.sides)
        return replace(r, sides=sides)

    found = [r for r in ALL if r.name == name]
    assert found
    assert any(drops(g) for r in found for s in r.sides for g in s.when)
    patch.setattr(settings, "ALL", tuple(changed(r) if r.name == name else r for r in ALL))


def with_rule(patch: Patch, bad: Rule, *, instead: str = "") -> None:
    patch.setattr(settings, "ALL", (*(r for r in ALL if r.name != instead), bad))


def dropped_value_guard(patch: Patch) -> None:
    """x * c = x for every constant c."""
    without_guard(patch, "mul-one", lambda g: any(p.head == "fval" for f in g.facts for p in f.parts()))


def lost_cast(patch: Patch) -> None:
    @rule(holds={"x": "b s"})
    def casts_back(x: Tensor, i: Int, t: Int) -> Sides:
        """cast(cast(x, integer), type of x) = x"""
        return Sides(cast(cast(x, i), t), x, when=[eq(dtype(x), t), eq(dtype(cast(x, i)), i), lt(4, i), lt(t, 2)])

    with_rule(patch, casts_back)


def wrong_merge(patch: Patch) -> None:
    @rule(expand={"n": (2, 3, 4, 5, 6)}, holds={"x": "b n s h", "p": (0, 2, 1, 3), "q": (0, 1, 3, 2)})
    def transposes(x: Tensor, p: Ints, q: Ints, n: int) -> Sides:
        """transpose(transpose(x, p), q) = transpose(x, q[p])"""
        both = Ints("vec-of", tuple(at(q, at(p, i)) for i in range(n)))
        return Sides(transpose(transpose(x, p), q), transpose(x, both), when=[eq(count(p), n), eq(count(q), n)])

    with_rule(patch, transposes, instead="transpose-transpose")


def assumed_broadcast(patch: Patch) -> None:
    @rule(holds={"x": "b s", "y": "b s"})
    def expands_to_itself(x: Tensor, y: Tensor) -> Sides:
        """expand(x, t) = x where the ranks are equal"""
        wide = call("Expand", x, y)
        return Sides(wide, x, when=[eq(rank(wide), rank(x))])

    with_rule(patch, expands_to_itself)


# ---- tables


def emitting(patch: Patch, change: Callable[[str, list[Any], list[Any]], tuple[Sequence[Any], Sequence[Any]]]) -> None:
    """Terms are printed with other operands and attributes: those `change` makes of a term's name and its own."""
    printed = emit.emit

    def changed(op: Op, printer: Any, ins: Sequence[Any], attrs: Sequence[Any]) -> Any:
        return printed(op, printer, *change(op.name, list(ins), list(attrs)))

    patch.setattr(writer, "emit", changed)
    patch.setattr(space.Choice, "better", True)  # written even if nothing is gained


def swapped_operands(patch: Patch) -> None:
    emitting(patch, lambda name, ins, attrs: (ins[::-1] if name == "Sub" else ins, attrs))


def dropped_alpha(patch: Patch) -> None:
    emitting(patch, lambda name, ins, attrs: (ins, [1.702] if name == "QuickGelu" else attrs))


def swapped_tables(patch: Patch) -> None:
    """The cache of cos is written where that of sin belongs."""

    def swapped(name: str, ins: list[Any], attrs: list[Any]) -> tuple[list[Any], list[Any]]:
        first = {"MsRope": 2, "MsRope3": 2, "OnnxRope": 1}.get(name)
        return (ins if first is None else [*ins[:first], ins[first + 1], ins[first], *ins[first + 2 :]]), attrs

    emitting(patch, swapped)


def wrong_dims(patch: Patch) -> None:
    """A Transpose turns all axes round, says shape inference."""

    def transposed(node: Any) -> Any:
        found = shape_moves.TABLE["Transpose"](node)
        return [replace(found[0], dims=None if found[0].dims is None else found[0].dims[::-1])]

    patch.setattr(shapes, "MOVES", {**shape_moves.TABLE, "Transpose": transposed})


def constant_input(patch: Patch) -> None:
    """An initializer that callers may override is read as the constant it is by default."""
    read = reader._Reader._id

    def fixed(self: Any, value: ir.Value) -> int:
        if value not in self.ids and value.const_value is not None and value.is_graph_input():
            self._bind(value, self._constant(value))
        return read(self, value)

    patch.setattr(reader._Reader, "_id", fixed)


def lost_name(patch: Patch) -> None:
    write = writer.Writer.write

    def renamed(self: Any, body: bool = False) -> Any:
        written = write(self, body)
        for k, v in enumerate(self.graph.outputs):
            v.name = f"output {k}"
        return written

    patch.setattr(writer.Writer, "write", renamed)


def unchecked(patch: Patch) -> None:
    """Nothing is asked of a model before it is read."""
    patch.setattr(wellformed, "check", lambda proto: None)


def changed_file(patch: Patch) -> None:
    """The caller's model is signed."""
    whole = run.Run.saturate

    def changing(self: Any, source: Any) -> Any:
        if isinstance(source, onnx.ModelProto):
            source.producer_name = "onnx-egraph"
        return whole(self, source)

    patch.setattr(run.Run, "saturate", changing)


PLANTED: tuple[Planted, ...] = (
    Planted("a dropped guard on a value", "graphs", 0, "refused", dropped_value_guard),
    Planted("a lost Cast", "graphs", 3, "numbers", lost_cast),
    Planted("swapped operands of Sub", "graphs", 1, "numbers", swapped_operands),
    Planted("a wrong axis in a merge of Transposes", "graphs", 1, "refused", wrong_merge),
    Planted("a wrong dim fact", "graphs", 7, "facts", wrong_dims),
    Planted("an overridable initializer taken as constant", "graphs", 6, "numbers", constant_input),
    Planted("a lost name of an output", "graphs", 1, "interface", lost_name),
    Planted("a broadcast assumed", "graphs", 1, "refused", assumed_broadcast),
    Planted("an alpha dropped by the emitter", "graphs", 0, "numbers", dropped_alpha),
    Planted("a changed input", "graphs", 1, "input changed", changed_file),
    Planted("cos and sin change places", "near_misses", 4, "numbers", swapped_tables),
    Planted("a damaged model that nothing checks", "damaged", 38, "raised ValueError", unchecked),
)

__all__ = ["PLANTED", "Planted"]
