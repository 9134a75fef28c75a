"""Measured prices: single-operator models, the table and its file, what is missing, and how a calibration goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from onnx_egraph import Measured, Roofline, Table, Work, saturate
from onnx_egraph.egraph.errors import CostError, OutputError, TableError
from onnx_egraph.egraph.targets import ABSENT, TensorType, target
from onnx_egraph.egraph.terms import OPS
from onnx_egraph.lowering.measure.bench import Bench, plan
from onnx_egraph.lowering.measure.calibration import Calibration
from onnx_egraph.lowering.measure.machine import Machine
from onnx_egraph.lowering.measure.operands import NoRoom, Unfit
from onnx_egraph.lowering.measure.single import Single
from onnx_egraph.lowering.measure.table import key
from onnx_egraph.lowering.measure.works import Works
from onnx_egraph.lowering.workload import Workload, workloads

F = "float32"


def tensor(text: str) -> TensorType:
    """'2x3', '2x3:int64', 'const 2x3', 'outer 2x3', '' for one left out; a scalar is '()'."""
    if not text:
        return ABSENT
    words = text.split()
    dims, _, dtype = words[-1].partition(":")
    shape = () if dims == "()" else tuple(map(int, dims.split("x")))
    return TensorType(dtype or F, shape, words[0] == "const", words[0] == "outer")


def work(op: str, ins: str, outs: str, **attrs: Any) -> Work:
    """Operands and results, each parted by commas. Attributes that the term always has go without saying."""
    always = OPS[op].constants if op in OPS else {}
    parted = [tuple(tensor(t.strip()) for t in text.split(",")) for text in (ins, outs)]
    return Work(op, *parted, {**always, **attrs})


GQA = {"num_heads": 4, "kv_num_heads": 2, "scale": 0.25, "cap": 0.0, "pairs": 0}
ATTENTION = {"scale": 0.25, "cap": 0.0}
#: One of each fused operator that the CPU target has, and of common kinds.
WORKS = {
    "RMSNorm": work("RMSNorm", "1x5x16, const 16", "1x5x16", eps=1e-5),
    "LayerNorm": work("LayerNorm", "1x5x16, const 16, const 16", "1x5x16", eps=1e-5),
    "LayerNorm without bias": work("LayerNorm", "1x5x16, const 16,", "1x5x16", eps=1e-5),
    "SkipRMSNorm": work("SkipRMSNorm", "1x5x16, 1x5x16, const 16,", "1x5x16", eps=1e-5),
    "SkipLayerNorm": work("SkipLayerNorm", "1x5x16, 1x5x16, const 16, const 16, const 16", "1x5x16", eps=1e-5),
    "Gelu": work("Gelu", "2x3x8", "2x3x8"),
    "BiasGelu": work("BiasGelu", "2x3x8, const 8", "2x3x8"),
    "FastGelu": work("FastGelu", "2x3x8", "2x3x8"),
    "QuickGelu": work("QuickGelu", "2x3x8", "2x3x8", alpha=1.5),
    "MsRope": work("MsRope", "1x2x3x8, 1x3:int64, 10x4, 10x4", "1x2x3x8", pairs=0, width=0, heads=0),
    "MsRope3": work("MsRope3", "1x3x16, 1:int64, const 10x4, const 10x4", "1x3x16", pairs=1, width=0, heads=2),
    "OnnxRope": work("OnnxRope", "1x2x3x8, 1x3x4, 1x3x4", "1x2x3x8", pairs=0, width=0, heads=0),
    "OnnxAttention": work("OnnxAttention", "1x4x3x8, 1x2x5x8, 1x2x5x8, 1x1x3x5:bool", "1x4x3x8", **ATTENTION),
    "OnnxAttention3": work(
        "OnnxAttention3", "1x3x32, 1x5x16, 1x5x16, 3x5", "1x3x32", num_heads=4, kv_num_heads=2, **ATTENTION
    ),
    "MsMHA": work("MsMHA", "1x3x32, 1x5x32, 1x5x32, 1x1x3x5", "1x3x32", num_heads=4, scale=0.25),
    "MsGQARope": work(
        "MsGQARope",
        "1x3x64, 1x3x32, 1x3x32, 1x2x4x16, 1x2x4x16, 1:int32, ():int32, 16x8, 16x8, 1x3:int64, 1x1x3x7",
        "1x3x64, 1x2x7x16, 1x2x7x16",
        **GQA,
    ),
    "MatMul": work("MatMul", "1x3x8, const 8x4", "1x3x4"),
    "Add": work("Add", "1x3x8, const 8", "1x3x8"),
    "Div of integers": work("Div", "3:int64, 3:int64", "3:int64"),
    "Pow": work("Pow", "1x3x8, const ()", "1x3x8"),
    "Where": work("Where", "1x1x3x5:bool, const (), 1x4x3x5", "1x4x3x5"),
    "Softmax": work("Softmax", "1x4x3x5", "1x4x3x5", axis=-1),
    "ReduceMean": work("ReduceMean", "1x3x8", "1x3x1", axes=(-1,), keep=1),
    "ReduceSum": work("ReduceSum", "1x3x8", "1x8", axes=(-2,), keep=0),
    "Transpose": work("Transpose", "1x3x4x8", "1x4x3x8", perm=(0, 2, 1, 3)),
    "Expand": work("Expand", "1x2x1x3, 4:int64", "1x2x4x3"),
    "Slice": work("Slice", "1x9x8, 1:int64, 1:int64", "1x4x8", axis=-2, step=2),
    "Slice backwards": work("Slice", "1x9x8, 1:int64, 1:int64", "1x9x8", axis=-2, step=-1),
    "SliceC": work("SliceC", "1x9x8", "1x2x8", axis=-2, start=1, end=5, step=2),
    "Gather": work("Gather", "const 20x8, 1x3:int64", "1x3x8", axis=-2),
    "Concat": work("Concat", "1x2x4x8, 1x2x1x8", "1x2x5x8", axis=-2),
    "Split": work("Split", "1x3x12", "1x3x4, 1x3x8", axis=-1, sizes=(4, 8)),
    "Cast": work("Cast", "1x3x8", "1x3x8:float16", to=10),
    "Range": work("Range", "const ():int64, ():int64, const ():int64", "7:int64"),
    "ClipBelow": work("ClipBelow", "1x3, const ()", "1x3"),
    "Not": work("Not", "1x3:bool", "1x3:bool"),
    "Trilu": work("Trilu", "1x5x5", "1x5x5", upper=1),
}


def alone(single: Single) -> list[np.ndarray]:
    """What a chain of one gives, without onnxruntime's own optimizations."""
    chain = single.chain(1, [1] * len(single.operands))
    model = chain.model
    made = next(n for n in model.graph.node if n.name not in chain.results)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made.output)
    for name, array in chain.stored.items():
        index = [t.name for t in model.graph.initializer].index(name)
        model.graph.initializer[index].CopyFrom(onnx.numpy_helper.from_array(array, name))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, chain.fed)]


def meaning(single: Single) -> list[np.ndarray]:
    """What the term says of the same operands."""
    op = OPS[single.work.op]
    ins: list[Any] = list(single.operands)
    if "TL" in op.sorts:
        ins = [ins]
    assert op.numpy is not None
    result = op.numpy(*op.joined(ins, [single.work.attrs[name] for name, _ in op.attributes]))
    return list(result) if isinstance(result, list | tuple) else [result]


@pytest.mark.parametrize("name", WORKS)
def test_a_single_operator_computes_what_its_term_means(name: str) -> None:
    single = Single(WORKS[name], 23)
    given, want = alone(single), meaning(single)
    assert [a.shape for a in given] == [t.shape for t in WORKS[name].outs]
    for a, b in zip(given, want, strict=False):
        assert a.dtype == b.dtype
        eps = np.finfo(a.dtype).eps if a.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(a, b, rtol=64 * eps, atol=64 * eps)


def test_every_fused_operator_that_the_target_runs_is_among_them() -> None:
    legal = {name for name, code in target("cpu").legal if code == 1}
    assert {name for name in legal if OPS[name].role == "fused"} <= {w.op for w in WORKS.values()}


@pytest.mark.parametrize(
    "given",
    [
        work("Softmax", "1x4x3x5", "1x4x3x5", axis=1),
        work("com.microsoft::FusedMatMul", "1x3x8, 1x4x8", "1x3x4", transB=1, alpha=0.5),
        work("ReduceSum", "1x3x8, const 1:int64", "1x3x1", keepdims=1),
        work("Slice", "4:int64, 1:int64, 1:int64, 1:int64, 1:int64", "2:int64"),
        work("ConstantOfShape", "2:int64", "3x4"),
        work("Tile", "1x3, 2:int64", "2x6"),
        work("CumSum", "2x3:int64, const ():int64", "2x3:int64"),
        work("Gather", "3:int64, const ():int64", "():int64", axis=0),
        work("LayerNormalization", "1x3x8, const 8, const 8", "1x3x8", axis=-1, epsilon=1e-5),
    ],
    ids=lambda w: w.op,
)
def test_nodes_that_no_rule_looks_into_run_too(given: Work) -> None:
    assert [a.shape for a in alone(Single(given, 17))] == [t.shape for t in given.outs]
    assert Bench().seconds(given, 17, 1e-5) > 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (work("ReduceMean", "1x3x8", "1x3x8", axes=(-1,), keep=1), r"it gives \[1, 3, 1\] and not \[1, 3, 8\]"),
        (work("Where", "1x3:bool, 1x4, 1x3", "1x3"), "broadcast"),
        (work("my.domain::Op", "1x3", "1x3"), "my.domain"),
        (work("Identity", "1x3:string", "1x3:string"), "type string"),
        (Work("Add", (TensorType(F, None), TensorType(F, (3,))), (TensorType(F, None),)), "rank"),
        (work("Add", f"const {1 << 21}x{1 << 21}, 1", f"{1 << 21}x{1 << 21}"), "MiB"),
        (work("If", "():bool", "1x3", then_branch=onnx.GraphProto()), "body|Then|then"),
    ],
    ids=["sizes", "operands", "unknown", "strings", "rank", "memory", "body"],
)
def test_what_cannot_run_alone_is_refused(given: Work, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        Bench().seconds(given, 17, 1e-5)


def test_weights_and_large_operands_turn() -> None:
    """Copies take more than caches hold, and differ, or onnxruntime packs them into one."""
    single = Single(work("MatMul", "1x512, const 512x512", "1x512"), 17)
    count, copies, results = plan(single, 1e-5)
    assert results == [0]
    assert copies == [1, count]
    assert copies[1] == 128
    chain = single.chain(3, [1, 3])
    assert list(chain.fed) == ["operand_0_0"]
    assert [n.input[1] for n in chain.model.graph.node if n.op_type == "MatMul"] == [*chain.stored]
    assert len({a.tobytes() for a in chain.stored.values()}) == 3
    assert plan(single, 0.05) == (4, [1, 4], [0])
    made = Single(work("Add", "1x512x512, 1x1x512", "1x512x512"), 17)
    assert plan(made, 1e-4)[1] == [2, 1]  # by the node before
    given = Single(work("Concat", "outer 1x2x512x64, 1x2x1x64", "outer 1x2x513x64", axis=-2), 17)
    count, copies, results = plan(given, 1e-5)
    assert (copies, results) == ([128, 1], [128])
    chain = given.chain(4, [2, 1], [2])
    assert [names for names, _ in chain.taken] == [["value_0_0_0", "value_0_0_2"], ["value_0_0_1", "value_0_0_3"]]
    assert Bench().seconds(given.work, 17, 1e-5) > 0


def test_what_comes_from_outside_and_what_goes_there_is_asked_about(works: Works) -> None:
    """The first product has an input of the model as an operand, the last node gives an output."""
    outer = {(w.work.op, tuple(t.outer for t in (*w.work.ins, *w.work.outs))) for w in works}
    assert outer == {
        ("MatMul", (True, False, False)), ("Tanh", (False, False)), ("Exp", (False, False)),
        ("Add", (False, True, False)), ("Softmax", (False, True)),
    }  # fmt: skip


class Fake:
    """A bench on which everything takes ten times what is predicted, of some kinds not at all."""

    def __init__(self, refuses: str = "", limit: int = 10**6) -> None:
        self.reference, self.asked, self._refuses, self._limit = 0.5, list[str](), refuses, limit

    def seconds(self, given: Work, opset: int, predicted: float) -> float:
        if len(self.asked) == self._limit:
            raise KeyboardInterrupt
        self.asked.append(key(given))
        if given.op == self._refuses:
            raise Unfit("no kernel")
        return 10 * predicted

    def node(self) -> float:
        return 2e-6


def model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """From ONNX's text, with initializers of ones."""
    made = parser.parse_model(text)
    for name, shape in weights.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    return made


MODEL = model(
    """
<ir_version: 8, opset_import: ["" : 17]>
g (float[b, s, 64] x) => (float[b, s, 64] y) {
    a = MatMul (x, w)
    c = Tanh (a)
    d = Exp (c)
    e = Add (d, x)
    y = Softmax <axis = -1> (e)
}
""",
    w=(64, 64),
)


@pytest.fixture(scope="module")
def works() -> Works:
    found = Works(Roofline())
    saturate(MODEL).works(found, Roofline(), workloads({"b": 1, "s": [16, 256]}))
    return found


def filled(table: Table, works: Works, bench: Fake, seconds: float | None = None, **more: Any) -> Table:
    Calibration(table, bench=lambda reference: bench, **more).fill(works, seconds)
    return table


def test_the_dearest_come_first_until_little_is_left(works: Works) -> None:
    ordered = works.ordered()
    assert {w.work.op for w in ordered[:2]} == {"MatMul"}
    assert {w.work.op for w in works} == {"MatMul", "Tanh", "Exp", "Add", "Softmax"}
    for column in ((0, 0), (0, 1)):
        total = sum(w.predicted * w.counts.get(column, 0) for w in works)
        left = sum(w.predicted * w.counts.get(column, 0) for w in works if w not in ordered)
        assert left <= 0.01 * total


def test_a_calibration_that_was_cut_off_goes_on_where_it_stopped(works: Works, tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    first = Fake(limit=4)
    with pytest.raises(KeyboardInterrupt):
        filled(Table.open(path), works, first)
    table = Table.read(path)
    assert len(table.entries) == 4
    assert (table.reference, table.node, table.path) == (0.5, 0, path)
    second = Fake(refuses="Tanh")
    table = filled(table, works, second)
    assert not set(first.asked) & set(second.asked)
    assert len(table.entries) + len(table.refused) == len(works.ordered()) == len(first.asked) + len(second.asked)
    assert set(table.refused.values()) == {"no kernel"}
    third = Fake()
    again = filled(Table.read(path), works, third)
    assert third.asked == []
    assert again.node == table.node == 2_000_000
    assert (again.entries, again.refused) == (table.entries, table.refused)
    assert (again.added, again.left, again.unfit) == (0, len(works) - len(table.entries), len(table.refused))
    assert [p.name for p in tmp_path.iterdir()] == ["prices.json"]


def test_what_lacks_memory_now_is_tried_again(works: Works, tmp_path: Path) -> None:
    class Crowded(Fake):
        def seconds(self, given: Work, opset: int, predicted: float) -> float:
            raise NoRoom("its operands take 5 MiB")

    table = filled(Table.open(tmp_path / "t.json"), works, Crowded())
    assert (table.entries, table.refused, table.left) == ({}, {}, len(works))
    assert len(filled(table, works, Fake()).entries) == len(works.ordered())


def test_it_stops_in_time(works: Works, tmp_path: Path) -> None:
    ticks = iter(range(1000))
    bench = Fake()
    table = filled(Table.open(tmp_path / "t.json"), works, bench, 4.5, clock=lambda: float(next(ticks)))
    assert 1 <= len(bench.asked) < len(works.ordered())
    assert table.left == len(works) - len(table.entries)
    assert Table.read(table.path).entries == table.entries


@pytest.fixture
def table(works: Works, tmp_path: Path) -> Table:
    return filled(Table.open(tmp_path / "prices.json"), works, Fake())


def test_a_table_is_read_as_it_was_written(table: Table) -> None:
    text = table.path.read_text(encoding="utf-8")
    table.entries = {k: table.entries[k] for k in reversed(table.entries)}
    table.save()
    assert table.path.read_text(encoding="utf-8") == text
    assert Table.read(table.path).entries == table.entries


def test_there_is_no_table_yet(tmp_path: Path) -> None:
    with pytest.raises(
        TableError, match=r"no table of measured prices at .*none.json: make one by onnx-egraph calibrate"
    ):
        Table.read(tmp_path / "none.json")
    assert Table.open(tmp_path / "none.json").entries == {}


def halved(text: str) -> str:
    return text[: len(text) // 2]


def changed(**parts: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **parts})


def entry(**parts: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        given = json.loads(text)
        given["entries"][0] |= parts
        return json.dumps(given)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        halved, lambda text: "", lambda text: "[]", lambda text: "7", lambda text: "[" * 100_000,
        changed(format=2), changed(entries=7), changed(entries=[7]), changed(machine=None), changed(refused=[]),
        changed(node=-1), changed(node=0.5), changed(reference="much"), changed(reference=-1),
        changed(reference=float("nan")), entry(ps=-1), entry(ps=10**400), entry(ps=1.5), entry(ps=True), entry(op=3),
        entry(ins=["float32[x]"]), entry(ins=[7]), entry(attrs=[1]),
    ],
)  # fmt: skip
def test_a_damaged_table_is_refused_by_name(table: Table, damage: Callable[[str], str]) -> None:
    table.path.write_text(damage(table.path.read_text(encoding="utf-8")), encoding="utf-8")
    for read in (Table.read, Table.open):
        with pytest.raises(TableError, match=r"prices\.json is no table of measured prices, or is damaged") as caught:
            read(table.path)
        assert "\n" not in str(caught.value)


def test_a_table_of_bytes_or_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(MODEL.SerializeToString() + b"\xff")
    for name in ("model.onnx", ""):
        with pytest.raises(TableError, match=name or tmp_path.name):
            Table.open(tmp_path / name)
    with pytest.raises(OutputError, match="folder"):
        Table(tmp_path).save()


@pytest.mark.parametrize(
    ("part", "value"),
    [("processor", "abacus"), ("onnxruntime", "0.1"), ("provider", "CUDAExecutionProvider"), ("threads", 2)],
)
def test_a_table_of_another_machine_is_refused_by_name(table: Table, part: str, value: object) -> None:
    given = json.loads(table.path.read_text(encoding="utf-8"))
    mine, given["machine"][part] = given["machine"][part], value
    table.path.write_text(json.dumps(given), encoding="utf-8")
    for read in (Table.read, Table.open):
        with pytest.raises(TableError) as caught:
            read(table.path)
        said = str(caught.value)
        assert f"prices.json was measured elsewhere: {part} is {value!r}, here {mine!r};" in said


def test_the_default_place_is_the_user_s_and_the_machine_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = Table.open()
    assert table.path.parent == tmp_path / "cache" / "onnx-egraph"
    table.save()
    assert Table.read().entries == {}
    assert Machine("other", "1.0").file != table.path
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Table.open().path.parent == tmp_path / ".cache" / "onnx-egraph"


def priced(*entries: tuple[Work, int]) -> Measured:
    table = Table(Path("unwritten.json"))
    for given, picoseconds in entries:
        table.add(given, picoseconds)
    return Measured(table)


def adds(n: int) -> Work:
    return work("Add", f"1x{n}x64, const 64", f"1x{n}x64")


def test_what_is_measured_is_the_price() -> None:
    model = priced((adds(16), 123_456))
    assert model.cost(adds(16)) == 123_456
    assert model.cost(Work("Add", adds(16).ins, adds(16).outs, {})) == 123_456


def test_what_is_missing_is_interpolated_in_size() -> None:
    at = Roofline().cost
    small, middle, large = adds(16), adds(64), adds(1024)
    model = priced((small, 2 * at(small)), (large, 8 * at(large)), (work("Tanh", "1x8", "1x8"), 10**9))
    assert 2 < model.cost(middle) / at(middle) < 8
    assert model.cost(adds(17)) == pytest.approx(2 * at(adds(17)), rel=0.05)
    assert model.cost(adds(1020)) == pytest.approx(8 * at(adds(1020)), rel=0.05)
    ratios = [model.cost(adds(n)) / at(adds(n)) for n in (16, 32, 64, 128, 256, 512, 1024)]
    assert ratios == sorted(ratios)


def test_those_of_the_same_attributes_and_types_count_most() -> None:
    at = Roofline().cost

    def softmax(n: int, axis: int = -1, dtype: str = F) -> Work:
        return work("Softmax", f"1x{n}x64:{dtype}", f"1x{n}x64:{dtype}", axis=axis)

    others = [softmax(64, axis=-2), softmax(64, dtype="float16"), softmax(64, axis=-2, dtype="float16")]
    model = priced((softmax(60), 2 * at(softmax(60))), *((other, 9 * at(other)) for other in others))
    assert 2 <= model.cost(softmax(64)) / at(softmax(64)) < 2.1
    model = priced((others[0], 3 * at(others[0])), (others[1], 9 * at(others[1])))
    assert 3 <= model.cost(softmax(64)) / at(softmax(64)) < 4.5


def test_products_of_few_rows_tell_little_of_those_of_many() -> None:
    """Memory bounds the ones, arithmetic the others."""
    at = Roofline().cost

    def product(rows: int, width: int) -> Work:
        return work("MatMul", f"1x{rows}x256, const 256x{width}", f"1x{rows}x{width}")

    few, many = product(1, 2048), product(512, 256)
    model = priced((few, 3 * at(few)), (many, at(many) // 2))
    assert model.cost(product(1, 256)) > 2 * at(product(1, 256))
    assert model.cost(product(512, 2048)) < at(product(512, 2048))


def test_what_has_no_entry_of_its_operator_follows_the_table() -> None:
    at = Roofline().cost
    model = priced((adds(16), 2 * at(adds(16))), (adds(32), 3 * at(adds(32))), (adds(64), 40 * at(adds(64))))
    other = work("Exp", "1x16x64", "1x16x64")
    assert model.cost(other) == pytest.approx(3 * at(other), rel=1e-6)
    assert priced().cost(other) == at(other)


def test_views_leaves_and_constants_cost_what_the_roofline_says() -> None:
    model = priced((adds(16), 10**12))
    for given in (
        work("Reshape", "1x8, const 2:int64", "8x1"),
        work("Identity", "1x8", "1x8"),
        Work("Input", (), ()),
        work("Mul", "const 8, const 8", "const 8"),
    ):
        assert model.cost(given) == Roofline().cost(given)


def test_each_node_costs_what_any_does() -> None:
    """Views, too; not what is no node when the model runs."""
    table = Table(Path("unwritten.json"), node=1_500_000)
    table.add(adds(16), 10_000_000)
    model, at = Measured(table), Roofline().cost
    assert model.cost(adds(16)) == 11_500_000
    assert model.cost(work("Reshape", "1x8, const 2:int64", "8x1")) == 1_700_000
    assert model.cost(work("Mul", "const 8, const 8", "const 8")) == at(work("Mul", "const 8, const 8", "const 8"))
    assert model.cost(Work("Input", (), ())) == 0
    assert model.errors() == Measured(table).errors()


def test_what_any_node_takes_is_measured() -> None:
    assert 0 <= Bench().node() < 1e-3


def test_each_entry_is_predicted_by_the_others() -> None:
    at = Roofline().cost
    right = priced(*((adds(n), 3 * at(adds(n))) for n in (16, 64, 256)))
    assert max(right.errors()) < 1e-3
    wrong = priced((adds(16), at(adds(16))), (adds(64), 2 * at(adds(64))))
    assert sorted(wrong.errors()) == pytest.approx([0.5, 1.0], rel=1e-3)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(CostError, match="Table"):
        Measured("prices.json")  # type: ignore[arg-type]


def test_nodes_as_they_stand_ask_what_rows_ask() -> None:
    """Or a graph that was written would have other prices than it was chosen for."""
    text = """
    <ir_version: 10, opset_import: ["" : 23]>
    g (float[b, s, 64] x) => (float[b, s, 64] y) {
        a = RMSNormalization <axis = -1, epsilon = 0.00001> (x, w)
        y = LayerNormalization <axis = -1, epsilon = 0.00001> (a, w, w)
    }
    """
    found = Works(Roofline())
    saturate(model(text, w=(64,))).works(found, Roofline(), [Workload("one", past=16)])
    assert sorted(key(w.work) for w in found) == sorted(
        key(work(op, f"{x} 1x16x64, {weights}", f"{y} 1x16x64", eps=1e-5))
        for op, x, weights, y in (
            ("RMSNorm", "outer", "const 64", ""),
            ("LayerNorm", "", "const 64, const 64", "outer"),
        )
    )


def test_a_term_and_the_node_it_is_written_as_are_one() -> None:
    """Such as a fused operator, of which no rule may know anything when it is read again."""
    pairs = [
        (WORKS["RMSNorm"], work("RMSNormalization", "1x5x16, const 16", "1x5x16", axis=-1, epsilon=1e-5, stash_type=1)),
        (
            WORKS["RMSNorm"],
            work("SimplifiedLayerNormalization", "1x5x16, const 16", "1x5x16", axis=-1, epsilon=1e-5, stash_type=1),
        ),
        (WORKS["LayerNorm without bias"], work("LayerNormalization", "1x5x16, const 16", "1x5x16", epsilon=1e-5)),
        (
            WORKS["MsMHA"],
            work(
                "com.microsoft::MultiHeadAttention", "1x3x32, 1x5x32, 1x5x32,,, 1x1x3x5", "1x3x32",
                num_heads=4, scale=0.25,
            ),
        ),
        (
            WORKS["MsRope3"],
            work(
                "com.microsoft::RotaryEmbedding", "1x3x16, 1:int64, const 10x4, const 10x4", "1x3x16",
                interleaved=1, num_heads=2,
            ),
        ),
    ]  # fmt: skip
    for one, other in pairs:
        assert key(one) == key(other)
        assert priced((one, 7)).cost(other) == priced((other, 7)).cost(one) == 7
    eps = float(np.float32(1e-5))
    assert key(work("RMSNorm", "1x16, const 16", "1x16", eps=eps)) == key(
        work("RMSNorm", "1x16, const 16", "1x16", eps=1e-5)
    )
    different = [
        WORKS["RMSNorm"], work("RMSNorm", "1x5x16, const 16", "1x5x16", eps=1e-6),
        work("RMSNorm", "1x5x16, 16", "1x5x16", eps=1e-5), work("RMSNorm", "1x6x16, const 16", "1x6x16", eps=1e-5),
        work("RMSNorm", "1x5x16:float16, const 16:float16", "1x5x16:float16", eps=1e-5),
    ]  # fmt: skip
    assert len(set(map(key, different))) == len(different)
