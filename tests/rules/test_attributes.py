"""Attributes of fused operators reach the file: an emitter that drops one is noticed by the samples of some rule."""

from __future__ import annotations

from typing import Any

import onnx
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph

from onnx_egraph.egraph.engine.rule import Sides
from onnx_egraph.egraph.terms import FUSED, OPS
from onnx_egraph.egraph.terms.meaning import evaluate
from onnx_egraph.rules import ALL

from .printing import model
from .test_runtime import ELSEWHERE, close, draws, run

#: Attributes of nodes that only repeat what the operands say, or what is the default in all printed models; and why.
SAID_ELSEWHERE: dict[tuple[str, str], str] = {
    ("RMSNormalization", "axis"): "the default is written out",
    ("RMSNormalization", "stash_type"): "the default is written out",
    ("LayerNormalization", "axis"): "the default is written out",
    ("GroupQueryAttention", "causal"): "of one position",
}


def without(proto: onnx.ModelProto, op: str, attribute: str) -> onnx.ModelProto:
    """The model with one attribute taken from all nodes of an operator."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for node in made.graph.node:
        if node.op_type == op:
            kept = [a for a in node.attribute if a.name != attribute]
            del node.attribute[:]
            node.attribute.extend(kept)
    return made


def test_an_attribute_that_is_not_written_is_noticed() -> None:
    written: set[tuple[str, str]] = set()
    noticed: set[tuple[str, str]] = set()
    for rule in ALL:
        if rule.name in ELSEWHERE or not any(o.name in FUSED for s in rule.sides for o in _ops(s)):
            continue
        for _, sides, env in draws(rule):
            proto = model({"right": sides.rhs}, env, evaluate(sides.lhs, env))
            for node in proto.graph.node:
                for a in node.attribute if node.op_type in {OPS[name].title for name in FUSED} else ():
                    key = (node.op_type, a.name)
                    if key in noticed:
                        continue
                    written.add(key)
                    try:
                        wrong = bool(close(run(without(proto, *key), env)["right"], sides, env, sides.rhs))
                    except (Fail, InvalidArgument, InvalidGraph):  # onnxruntime refuses the node
                        wrong = True
                    if wrong:
                        noticed.add(key)
    assert {("Attention", "softcap"), ("GroupQueryAttention", "softcap")} <= noticed
    assert written - noticed == set(SAID_ELSEWHERE)


def _ops(s: Sides) -> list[Any]:
    return [t.op for t in (*s.lhs.subterms(), *s.rhs.subterms()) if t.op is not None]
