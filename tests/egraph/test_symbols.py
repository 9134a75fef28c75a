"""Symbols for sizes in the e-graph."""

from __future__ import annotations

from onnx_egraph.egraph.engine.saturate import Engine
from onnx_egraph.rules import ALL


def test_a_symbol_that_is_a_number_is_a_symbol_no_more() -> None:
    """Else a guard that a size is not fixed holds of 1, and keys of one head are given to queries of two."""
    engine = Engine([r for r in ALL if r.name == "cast-same"])
    engine.run("(DSym 7)\n(DSym 8)\n(union (DSym 7) (DNum 1))")
    engine.facts()
    engine.run("(relation seen (i64))\n(rule ((= d (DSym s))) ((seen s)) :ruleset facts)")
    engine.facts()
    assert engine.holds("(seen 8)")
    assert not engine.holds("(seen 7)")
    assert engine.freeze().symbols[7] == 1
