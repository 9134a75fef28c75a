"""Arguments of a wrong kind end in one line that says what is wanted, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.checking.soundness import check
from onnx_egraph.egraph.engine.lang import Sides, Tensor, apply, call, dtype, eq, operator, rule
from onnx_egraph.egraph.errors import CostError, EGraphError, ModelError, OutputError, RuleError, TargetError
from onnx_egraph.egraph.targets import Roofline, Work
from onnx_egraph.egraph.terms.dtypes import FLOAT32

MODEL = Path(__file__).parents[2] / "examples" / "qwen3_2layers.onnx"


@pytest.mark.parametrize(("given", "error", "says"), [
    (dict(cost=Roofline), CostError, r"Roofline\(\)"),
    (dict(cost=lambda work: 1), CostError, "a method cost"),
    (dict(limits=5), EGraphError, r"Limits\(iterations"),
    (dict(rules=["rms-norm"]), RuleError, "'rms-norm' is no rule"),
    (dict(target=None), TargetError, "a Target"),
    (dict(dims=[("batch", 1)]), ModelError, "a mapping of names"),
    (dict(dims={"batch": True}), ModelError, r"dims\['batch'\] is True"),
    (dict(dims={"batch": []}), ModelError, r"dims\['batch'\] is \[\]"),
    (dict(dims={"batch": "12"}), ModelError, r"dims\['batch'\] is '12'"),
    (dict(progress=3), EGraphError, "progress is 3"),
])  # fmt: skip
def test_a_wrong_argument(given: dict[str, Any], error: type[EGraphError], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        saturate_and_extract(MODEL, **given)
    assert "\n" not in str(raised.value)


class Fixed:
    def __init__(self, cost: Any) -> None:
        self.price = cost

    def cost(self, work: Work) -> Any:
        return self.price if work.op == "MatMul" else 1


@pytest.mark.parametrize("price", [-1, 1.5, None, 10**400])
def test_a_cost_that_is_none(price: Any) -> None:
    with pytest.raises(CostError, match="MatMul"):
        saturate_and_extract(MODEL, cost=Fixed(price))


def test_sizes_of_numpy_and_ranges_are_as_good() -> None:
    given = saturate_and_extract(MODEL, dims={"batch": np.int64(2), "seq": range(1, 3)})
    assert given.report.cost_after == saturate_and_extract(MODEL, dims={"batch": 2, "seq": [1, 2]}).report.cost_after


def test_a_place_to_save_is_a_path() -> None:
    with pytest.raises(OutputError, match="cannot write to None"):
        saturate_and_extract(MODEL).save(None)  # type: ignore[arg-type]


def test_costs_of_numpy_are_as_good() -> None:
    assert saturate_and_extract(MODEL, cost=Fixed(np.int64(7))).report.cost_after > 0


def test_a_rule_may_take_a_term_of_the_caller() -> None:
    log_softmax = operator(
        "Logarithm", "x axis:i64", lambda x, a: x - np.log(np.exp(x).sum(axis=a, keepdims=True)), shape="same",
        onnx="ai.onnx::LogSoftmax",
    )  # fmt: skip

    @rule(stage="fuse", contract="reassociated", holds=dict(x="b n"))
    def exp_of_log_softmax(x: Tensor) -> Sides:
        """exp(log softmax(x)) = softmax(x)"""
        of_floats = [eq(dtype(x), FLOAT32)]
        return Sides(call("Exp", apply(log_softmax, x, -1)), call("Softmax", x, -1), when=of_floats)

    assert check(exp_of_log_softmax) == []
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
    g (float[b,8] x) => (float[b,8] y, float[b,8] z) {
        p = LogSoftmax <axis = -1> (x)
        y = Exp (p)
        q = LogSoftmax <axis = 0> (x)
        z = Exp (q)
    }""")
    result = saturate_and_extract(model, rules=[exp_of_log_softmax], verify=True)
    assert [node.op_type for node in result.model.graph.node] == ["Softmax", "LogSoftmax", "Exp"]


def test_a_size_of_a_dimension_without_a_name() -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]> g (float[b,?] x) => (float[b,?] y) {
        y = Neg (x)
    }""")
    with pytest.raises(EGraphError, match=r"named 'None'; there are \['b'\]"):
        saturate_and_extract(model, dims={"None": 4})


@pytest.mark.parametrize("shape", ["?, ?", "n, n", "2, 3"])
def test_a_name_that_stands_for_another_size_may_be_given(shape: str) -> None:
    """The product says that k is the second size of x, which has no name, another one, or a number."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{shape}] x, float[k, 4] w) => (float[a, b] y) {{ y = MatMul(x, w) }}""")
    small, large = (saturate_and_extract(model, dims={"k": k}).report for k in (8, 800))
    if "3" in shape:
        assert small.cost_before == large.cost_before
    else:
        assert small.cost_before < large.cost_before
    with pytest.raises(EGraphError, match="no input of the model has a dimension named 'z'"):
        saturate_and_extract(model, dims={"z": 8})
