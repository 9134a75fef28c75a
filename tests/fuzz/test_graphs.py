"""A short run of the graphs fuzzer, and a long one behind `-m deep`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from campaign import Campaign, Outcome, again, children, here
from graphs import FUZZER
from judge import difference, judge
from models import draw_model
from noise import noisy
from operations import table
from reduce import Pinned, reduce

from onnx_egraph.lowering import space, spell
from onnx_egraph.lowering.spell import SPELLINGS

SHORT = 36  # seeds, in four parts: enough to draw every operator
PARTS = 4


def named(kinds: object) -> set[str]:
    return {f"{domain}::{op}" if domain else op for domain, op in kinds}  # type: ignore[attr-defined]  # pairs


def test_every_operator_that_rules_look_into_has_its_drawer() -> None:
    assert set(table()) == set(SPELLINGS)


@pytest.mark.parametrize("part", range(PARTS))
def test_graphs(part: int) -> None:
    total = here(FUZZER, range(part * SHORT // PARTS, (part + 1) * SHORT // PARTS))
    assert not total.faults, "\n".join(f"{o.text}\n{again(FUZZER, o.seed)}" for o in total.faults)
    assert total.counts["graphs with a fusion"] > 0
    assert total.counts["facts"] > 1000
    assert total.counts["changed"] > total.seeds // 3
    assert total.counts["not drawn"] == 0


def test_a_short_run_draws_every_operator() -> None:
    drawn = set().union(*(draw_model(seed).kinds for seed in range(SHORT)))
    assert named(SPELLINGS) <= named(drawn)


@pytest.mark.deep
@pytest.mark.parametrize("part", range(8))
def test_graphs_deep(part: int) -> None:
    found = [o for o in children(FUZZER, range(1000 + 500 * part, 1500 + 500 * part)) if o.fault]
    assert not found, "\n".join(f"{o.text}\n{again(FUZZER, o.seed)}" for o in found)


# ---- the judge itself


def test_a_seed_draws_the_same_model_again() -> None:
    a, b = draw_model(3), draw_model(3)
    assert a.model.SerializeToString() == b.model.SerializeToString()
    for f, g in zip(a.feeds(), b.feeds(), strict=True):
        assert all(f[k].tobytes() == g[k].tobytes() for k in f)


def test_the_comparison_sees_a_difference() -> None:
    a = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
    assert difference(a, a, 8) == ""
    assert difference(a, a * np.float32(1 + 1e-6), 8) == ""
    assert "became" in difference(a, a * np.float32(1 + 1e-4), 8)
    assert difference(a, a * np.float32(1 + 1e-4), 8, np.full(a.shape, 1e-4)) == ""
    assert difference(a, a.astype(np.float64), 8)
    assert difference(a, a[0], 8)
    assert difference(a, np.where(a > 1.9, np.nan, a).astype(np.float32), 8)
    assert difference(a.astype(np.int64), a.astype(np.int64) + 1, 8)


def test_noise_tells_a_steep_function_from_a_flat_one() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x) => (float[n] flat, float[n] steep) <float big = {1e6}> {
        flat = Tanh (x)
        a = Mul (x, big)
        steep = Sin (a)
    }""")
    x = np.linspace(0.5, 1, 8, dtype=np.float32)
    want = [np.tanh(x), np.sin(x * np.float32(1e6))]
    spreads = noisy(model, {"x": x}, 4, want)
    assert spreads is not None
    assert 0 < spreads[0].max() < 1e-5
    assert spreads[1].max() > 1e-2


def test_a_failing_model_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Tanh is read as a Sin: little more than that node is left."""
    entries = dict(spell.SPELLINGS)
    entries["", "Tanh"] = spell.Entry(lambda r: ("Sin", r.x()))
    monkeypatch.setattr("onnx_egraph.lowering.reader.SPELLINGS", entries)
    monkeypatch.setattr(space.Choice, "better", True)  # written even if nothing is gained
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x, float[n] z) => (float[n] y, float[n] w) {
        a = Neg (x)
        b = Add (a, z)
        c = Tanh (b)
        d = Abs (c)
        y = Mul (d, a)
        w = Exp (z)
    }""")
    arrays = [{name: np.linspace(1, k + 2, n, dtype=np.float32) for k, name in enumerate("xz")} for n in (2, 3)]
    given = Pinned(model, [], set(), [], 0, arrays=arrays)
    fault = judge(given, facts=False).fault
    assert fault is not None
    small, found = reduce(given, fault, lambda d: judge(d, facts=False).fault)
    assert found.kind == fault.kind == "numbers"
    assert {node.op_type for node in small.model.graph.node} <= {"Tanh", "Mul", "Abs"}
    assert len(small.model.graph.node) <= 2


def test_a_crash_and_a_hang_are_put_down_to_their_seeds() -> None:
    found = [*children(Campaign("dying", lambda seed, shrink: Outcome(seed)), range(5), limit=3)]
    assert [(o.seed, o.fault) for o in found] == [(0, ""), (1, "crash"), (2, ""), (3, "hang"), (4, "")]
