"""Whatever a path or a name holds, a message and a line of a report stay one line, and no terminal obeys them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from typer.testing import CliRunner

from onnx_egraph import cli, saturate_and_extract
from onnx_egraph.egraph.errors import CostError, EGraphError, ModelError, one_line
from onnx_egraph.egraph.targets import Roofline, Work

NASTY = [
    "a\nb", "a\r\nb", "\x1b[2J\x1b[31mred", "\x00\x07\x7f\x9b", "a\u2028b\u2029c\x85d", "a\u202eb",
    "\ttab\v\f", "x" * 100_000,
]  # fmt: skip
IDS = ["newline", "return", "escape", "control", "separators", "direction", "tabs", "long"]


def plain(text: str) -> bool:
    return text.isprintable() and len(text) < 2100


def norm(name: str) -> onnx.ModelProto:
    """A LayerNorm and, over another axis, none: every name in it is nasty."""
    nodes, outputs = [], []
    for part, axis in (("y", -1), ("z", 1)):

        def own(step: str, part: str = part) -> str:
            return f"{name}{part}{step}"

        steps: list[tuple[str, list[str], dict[str, Any]]] = [
            ("ReduceMean", [name], {"axes": [axis]}), ("Sub", [name, own("0")], {}), ("Pow", [own("1"), "two"], {}),
            ("ReduceMean", [own("2")], {"axes": [axis]}), ("Add", [own("3"), "eps"], {}), ("Sqrt", [own("4")], {}),
            ("Div", [own("1"), own("5")], {}), ("Mul", [own("6"), "two"], {}),
        ]  # fmt: skip
        for place, (op, given, more) in enumerate(steps):
            nodes.append(h.make_node(op, given, [own(str(place))], own(f"node{place}"), **more))
        outputs.append(h.make_tensor_value_info(own("7"), T.FLOAT, [name, 4, 8]))
    stored = [nh.from_array(np.array(v, np.float32), n) for n, v in (("two", 2), ("eps", 1e-5))]
    given = h.make_tensor_value_info(name, T.FLOAT, [name, 4, 8])
    graph = h.make_graph(nodes, name, [given], outputs, stored)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", NASTY, ids=IDS)
def test_reports_and_explanations(name: str, tmp_path: Path) -> None:
    onnx.save(norm(name), tmp_path / "m.onnx")
    result = saturate_and_extract(tmp_path / "m.onnx", verify=True)
    assert result.report.counts() == {"LayerNormalization": 1}
    assert all(plain(line) for line in result.near_misses())
    assert all(plain(line) for line in result.report.text().split("\n"))
    assert all(plain(line) for line in result.explain(result.report.fused[0].node).text().split("\n"))
    for command in (["explain"], ["optimize", "-o", str(tmp_path / "o")]):
        run = CliRunner().invoke(cli.app, [*command, str(tmp_path / "m.onnx")])
        assert run.exit_code == 0, run.output
        assert all(plain(line) for line in (run.stdout + run.stderr).split("\n"))


def broken(name: str) -> dict[str, onnx.ModelProto]:
    kinds = ("dangling", "twice", "cycle", "output", "attribute", "axes", "opset", "sizes")
    found = {kind: norm(name) for kind in kinds}
    found["dangling"].graph.node[1].input[0] = f"{name}nowhere"
    found["twice"].graph.node[1].output[0] = f"{name}y0"
    found["cycle"].graph.node[0].input[0] = f"{name}y7"
    found["output"].graph.output[0].name = f"{name}nowhere"
    found["attribute"].graph.node[0].attribute[0].CopyFrom(h.make_attribute("axes", name))
    found["axes"].graph.node[0].op_type = "Concat"
    found["opset"].opset_import[0].version = 99
    weight = found["sizes"].graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = T.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", name.replace("\x00", "\x01")
    return found


@pytest.mark.parametrize("name", NASTY, ids=IDS)
def test_errors(name: str, tmp_path: Path) -> None:
    for kind, proto in broken(name).items():
        with pytest.raises(ModelError) as caught:
            saturate_and_extract(proto)
        assert plain(str(caught.value)), kind
    in_file = name.replace("\x00", "")[:100]
    path = tmp_path / f"{in_file}.onnx"
    path.write_bytes(b"no model")
    for model in (path, tmp_path / f"{in_file}missing.onnx", tmp_path / name):
        with pytest.raises(ModelError) as caught:
            saturate_and_extract(model)
        assert plain(str(caught.value))
        assert str(caught.value).count(one_line(str(tmp_path))) == 1
    run = CliRunner().invoke(cli.app, ["optimize", "-q", str(path), "-o", str(tmp_path / "o")])
    assert run.exit_code == 1
    assert len(run.stderr.splitlines()) == 1
    assert plain(run.stderr.removesuffix("\n"))
    path.write_bytes(norm("x").SerializeToString())
    out = tmp_path / in_file / "missing" / "o.onnx"
    run = CliRunner().invoke(cli.app, ["optimize", str(path), "-o", str(out)])
    assert run.exit_code == 1
    assert all(plain(line) for line in run.stderr.split("\n"))
    run = CliRunner().invoke(cli.app, ["optimize", "-q", str(path), "-o", str(path)])
    assert run.exit_code == 2
    assert all(plain(line) for line in run.stderr.split("\n"))
    with pytest.raises(EGraphError) as other:
        saturate_and_extract(norm("x"), disable=[name])
    assert plain(str(other.value))
    with pytest.raises(EGraphError) as other:
        saturate_and_extract(norm("x"), dims={name: 3})
    assert plain(str(other.value))
    with pytest.raises(EGraphError) as other:
        saturate_and_extract(norm("x"), target=name)
    assert plain(str(other.value))


def test_an_onnx_ir_model_with_such_names() -> None:
    model = ir.from_proto(norm("a\nb"))
    model.graph.node(1).replace_input_with(0, ir.Value(name="no\nwhere"))
    with pytest.raises(ModelError) as caught:
        saturate_and_extract(model)
    assert plain(str(caught.value))


class Failing:
    def __init__(self, error: BaseException) -> None:
        self.error, self.usual = error, Roofline()

    def cost(self, work: Work) -> int:
        if work.op == "Sqrt":
            raise self.error
        return self.usual.cost(work)


@pytest.mark.parametrize("error", [KeyError("a\nb"), ZeroDivisionError(), RuntimeError("\x1b[2J"), CostError("none"),
                                   AssertionError("x" * 10_000), StopIteration()])  # fmt: skip
def test_a_cost_model_that_fails(error: Exception) -> None:
    with pytest.raises(CostError, match=f"Sqrt: {type(error).__name__}") as caught:
        saturate_and_extract(norm("x"), cost=Failing(error))
    assert caught.value.__cause__ is error
    assert plain(str(caught.value))


def test_an_interrupt_in_a_cost_model_is_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        saturate_and_extract(norm("x"), cost=Failing(KeyboardInterrupt()))
