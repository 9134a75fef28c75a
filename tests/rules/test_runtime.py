"""Both sides of every rule in onnxruntime, optimizations off: valid models, equal numbers, the numbers
numpy gives.

`exact` rules give equal bits on both sides; the others, and every side against numpy, stay within
8 eps sqrt(n) max|ref| of the left side in float64, plus four times what numpy's own left side is off. All but
`finite` rules also meet NaN and infinities, which show up in the same places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnx_egraph.egraph.checking.comparison import bind, differs, first_difference, outside, same_pattern
from onnx_egraph.egraph.checking.sample import Sample, draw
from onnx_egraph.egraph.engine.rule import Rule, Sides
from onnx_egraph.egraph.terms import OPS, IllFormed
from onnx_egraph.egraph.terms.dtypes import eps
from onnx_egraph.egraph.terms.expression import Expr
from onnx_egraph.egraph.terms.meaning import evaluate
from onnx_egraph.rules import ALL

from .printing import DEFINITIONS, model

#: Rules whose operator the CPU provider does not run, and why.
ELSEWHERE: dict[str, str] = {
    "gqa-decode": "norms inside GroupQueryAttention are for CUDA and WebGPU; tests/models/test_decode_cuda.py compares"
    " its numbers with the node taken apart",
}


def run(proto: onnx.ModelProto, env: Mapping[str, Any]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {n: v[0] if isinstance(v, list) else v for n, v in env.items()}
    names = [i.name for i in session.get_inputs()]
    return dict(
        zip(
            [o.name for o in session.get_outputs()],
            session.run(None, {n: given[n] for n in names}),
            strict=True,
        )
    )


def draws(rule: Rule) -> Iterator[tuple[str, Sides, dict[str, Any]]]:
    """Readings that hold, on dims that differ and on random ones (with ones among them), at last with NaN."""
    for i, entry in enumerate(rule.holds):
        sample = Sample(entry, rule.variables)
        for seed in range(3 if rule.contract == "finite" else 6):
            rng = np.random.default_rng([seed, i])
            letters = sample.distinct() if seed in (0, 3) else sample.random(rng)
            drawn = draw(sample, letters, rng, special="few" if seed > 2 else "")
            for s in rule.sides:
                try:
                    env, failing = bind(s, drawn.env, drawn.letters)
                    evaluate(s.lhs, env)
                except (IllFormed, KeyError):
                    continue
                if not failing and not outside(s.lhs, env, rule.assumes):
                    yield f"holds[{i}], seed {seed}: {drawn}", s, env


def close(x: np.ndarray, sides: Sides, env: Mapping[str, Any], side: Expr) -> str:
    """Why x, the value of a side, is not the left side of the rule, "" if it is within the tolerance."""
    left = evaluate(sides.lhs, env)
    if x.dtype.kind != "f":
        return differs(x, left)
    ref = evaluate(sides.lhs, env, wide=True)
    if x.shape != left.shape or x.dtype != left.dtype:
        return f"{x.dtype}{x.shape} for {left.dtype}{left.shape}"
    longest = max(max(v.shape, default=1) for v in env.values() if isinstance(v, np.ndarray))
    usable = np.isfinite(ref) & np.isfinite(left)
    if text := first_difference(usable | same_pattern(left, ref, x, evaluate(side, env, wide=True)), left, x):
        return text
    if not usable.any():
        return ""
    off = np.abs(left.astype(np.float64)[usable] - ref[usable]).max()
    bound = 4 * off + 8 * eps(str(x.dtype)) * longest**0.5 * np.abs(ref[usable]).max()
    with np.errstate(invalid="ignore"):
        return first_difference(~usable | (np.abs(x.astype(np.float64) - ref) <= bound), left, x)


@pytest.mark.parametrize("rule", [r for r in ALL if r.name not in ELSEWHERE], ids=lambda r: r.name)
def test_both_sides_in_onnxruntime(rule: Rule) -> None:
    checked = 0
    for case, sides, env in draws(rule):
        like = evaluate(sides.lhs, env)
        proto = model({"left": sides.lhs, "right": sides.rhs}, env, like)
        onnx.checker.check_model(proto, full_check=True)
        got = run(proto, env)
        if rule.contract == "exact":
            assert not differs(got["left"], got["right"]), f"{rule.name}: {case}"
        for side, term in (("left", sides.lhs), ("right", sides.rhs)):
            text = close(got[side], sides, env, term)
            assert not text, f"{rule.name}, {side} side: {case}: {text}"
        checked += 1
    assert checked


@pytest.mark.parametrize("rule", [r for r in ALL if r.name in ELSEWHERE], ids=lambda r: r.name)
def test_a_model_of_an_operator_that_runs_elsewhere_is_valid(rule: Rule) -> None:
    for _, sides, env in draws(rule):
        like = evaluate(sides.lhs, env)
        onnx.checker.check_model(model({"left": sides.lhs, "right": sides.rhs}, env, like), full_check=True)
        assert not close(run(model({"left": sides.lhs}, env, like), env)["left"], sides, env, sides.lhs)


def test_every_marker_is_defined() -> None:
    assert {o.name for o in OPS.values() if o.marker} <= set(DEFINITIONS)
