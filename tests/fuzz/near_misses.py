"""Real exports with one thing changed: an operator, an attribute, a constant, an element type or a wire.

Run `python tests/fuzz/near_misses.py --count 200 --seed 1`. What no longer is what a rule looks for must not be fused,
and what still is must be fused right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import numpy as np
import onnx
from campaign import Campaign, Outcome, main
from judge import Redraw, judge
from models import Drawn, Feeds
from onnx import TensorProto as T
from onnx import numpy_helper as nh
from reduce import Pinned, reduce, told

from onnx_egraph.lowering.verify.feeds import plan_feeds

EXPORTS = Path(__file__).parents[1] / "models" / "exports"
ATTEMPTS = 12  # at a change that onnxruntime takes
LARGEST = 700_000  # bytes of an export that is taken

SWAPS: tuple[tuple[str, ...], ...] = (
    ("Add", "Sub", "Mul", "Div"), ("Cos", "Sin", "Tanh", "Neg"), ("Sqrt", "Exp", "Abs", "Reciprocal"), ("Max", "Min"),
    ("Sigmoid", "Tanh", "Erf"), ("ReduceMean", "ReduceSum", "ReduceMax"), ("And", "Or"), ("Softmax", "LogSoftmax"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), ("Pow", "Mul", "Add"),
)  # fmt: skip


@cache
def exports() -> list[Path]:
    return sorted(p for p in EXPORTS.glob("*.onnx") if p.stat().st_size < LARGEST)


@cache
def _read(path: Path) -> bytes:
    return path.read_bytes()


def changed(seed: int, attempt: int) -> tuple[onnx.ModelProto, str] | None:
    """An export with one change, and what it is; None where the place drawn has nothing to change."""
    rng = np.random.default_rng([seed, attempt, 5])
    path = exports()[seed % len(exports())]
    model = onnx.ModelProto.FromString(_read(path))
    change = CHANGES[int(rng.integers(len(CHANGES)))]
    said = change(model.graph, rng)
    return None if said is None else (model, f"{path.stem}: {said}")


def _one(rng: np.random.Generator, found: Iterable[Any]) -> Any:
    options = list(found)
    return options[int(rng.integers(len(options)))] if options else None


def operator(graph: onnx.GraphProto, rng: np.random.Generator) -> str | None:
    node = _one(rng, (n for n in graph.node if any(n.op_type in group for group in SWAPS)))
    if node is None:
        return None
    group = _one(rng, (g for g in SWAPS if node.op_type in g))
    before, after = node.op_type, _one(rng, (op for op in group if op != node.op_type))
    node.op_type = after
    return f"{node.name}: {before} becomes {after}"


def attribute(graph: onnx.GraphProto, rng: np.random.Generator) -> str | None:
    kinds = (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT, onnx.AttributeProto.INTS)
    pairs = [
        (n, a) for n in graph.node for a in n.attribute if a.type in kinds and n.op_type not in ("Cast", "Constant")
    ]
    if not pairs:
        return None
    node, a = _one(rng, pairs)
    before = str(onnx.helper.get_attribute_value(a))
    if a.type == onnx.AttributeProto.INT:
        a.i += int(rng.choice([-1, 1]))
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f *= float(rng.choice([0.5, 1.01, -1.0, 10.0]))
    elif len(a.ints) > 1:
        i, j = rng.permutation(len(a.ints))[:2]
        a.ints[i], a.ints[j] = a.ints[j], a.ints[i]
    elif a.ints:
        a.ints[0] += int(rng.choice([-1, 1]))
    if a.name == "num_outputs" and a.i < len(node.output):
        return None  # onnxruntime ends the process; ours refuses the model
    return f"{node.name} ({node.op_type}): {a.name} = {before} becomes {onnx.helper.get_attribute_value(a)}"


def constant(graph: onnx.GraphProto, rng: np.random.Generator) -> str | None:
    nodes = [a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    small = [t for t in (*graph.initializer, *nodes) if 0 < np.prod(t.dims, dtype=np.int64) <= 4096]
    tensor = _one(rng, [t for t in small if t.data_type in (T.FLOAT, T.FLOAT16, T.INT64, T.BOOL)])
    if tensor is None:
        return None
    array = nh.to_array(tensor).copy()
    flat = array.reshape(-1)
    k = int(rng.integers(flat.size))
    before = flat[k]
    if array.dtype == bool:
        flat[k] = not flat[k]
    elif array.dtype.kind == "i":
        flat[k] += int(rng.choice([-1, 1]))
    else:
        flat[k] *= np.asarray(rng.choice([-1.0, 1.01, 0.0, 2.0, 0.5]), array.dtype)
        if before == 0:
            flat[k] = 1
    after = flat[k]
    name = tensor.name
    tensor.CopyFrom(nh.from_array(array, name))
    return f"constant {name!r}: element {k} of {flat.size}, {before}, becomes {after}"


def element_type(graph: onnx.GraphProto, rng: np.random.Generator) -> str | None:
    """One value goes through another type, which loses digits, or range."""
    node = _one(
        rng, (n for n in graph.node if n.op_type in ("Mul", "Add", "Softmax", "MatMul", "Sqrt", "Cos", "Sin", "Where"))
    )
    if node is None:
        return None
    place = [*graph.node].index(node)
    name = node.output[0]
    if any(o.name == name for o in graph.output):
        return None
    to = int(rng.choice([T.FLOAT16, T.INT32, T.DOUBLE]))
    back = T.FLOAT16 if "fp16" in graph.name else T.FLOAT
    node.output[0] = f"{name} before"
    casts = [onnx.helper.make_node("Cast", [f"{name} before"], [f"{name} cast"], to=to),
             onnx.helper.make_node("Cast", [f"{name} cast"], [name], to=back)]  # fmt: skip
    for k, cast in enumerate(casts):
        graph.node.insert(place + 1 + k, cast)
    return f"{node.name} ({node.op_type}): cast to {T.DataType.Name(to)} and back"


def wire(graph: onnx.GraphProto, rng: np.random.Generator) -> str | None:
    """An operand is another value made before; or two operands change places."""
    nodes = [n for n in graph.node if n.input]
    node = _one(rng, nodes)
    k = int(rng.integers(len(node.input)))
    before = node.input[k]
    if len(node.input) > 1 and rng.random() < 0.4:
        j = (k + 1) % len(node.input)
        node.input[k], node.input[j] = node.input[j], node.input[k]
        return f"{node.name} ({node.op_type}): operands {k} and {j} change places"
    place = [*graph.node].index(node)
    close = [o for n in graph.node[max(0, place - 40) : place] for o in n.output if o]
    other = _one(rng, [*close, *(v.name for v in graph.input)])
    if other is None or other == before:
        return None
    node.input[k] = other
    return f"{node.name} ({node.op_type}): operand {k}, {before!r}, becomes {other!r}"


def left_out(graph: onnx.GraphProto, rng: np.random.Generator) -> str | None:
    """A node is passed by: its first operand takes the place of its value."""
    node = _one(rng, (n for n in graph.node if n.input and len(n.output) == 1))
    name, value = node.output[0], node.input[0]
    if not value or any(o.name == name for o in graph.output):
        return None
    for other in graph.node:
        for i, used in enumerate(other.input):
            if used == name:
                other.input[i] = value
    graph.node.remove(node)
    return f"{node.name} ({node.op_type}) is left out"


def exposed(graph: onnx.GraphProto, rng: np.random.Generator) -> str | None:
    """A value inside becomes an output, too."""
    listed = {o.name for o in graph.output}
    node = _one(rng, (n for n in graph.node if n.op_type not in ("Constant", "Shape") and n.output[0] not in listed))
    graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
    try:
        typed = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph))
    except Exception:
        return None
    kinds = {v.name: v for v in typed.graph.value_info} | {v.name: v for v in typed.graph.output}
    del graph.output[-1]
    found = kinds.get(node.output[0])
    if found is None or not found.type.tensor_type.elem_type:
        return None
    graph.output.append(onnx.helper.make_tensor_value_info(found.name, found.type.tensor_type.elem_type, None))
    return f"{node.name} ({node.op_type}): its value is an output"


CHANGES: tuple[Callable[[onnx.GraphProto, np.random.Generator], str | None], ...] = (
    operator, operator, attribute, constant, constant, element_type, wire, wire, left_out, exposed,
)  # fmt: skip


@cache
def feeds_of(path: Path) -> tuple[Feeds, ...]:
    """Inputs that fit each other, for a batch of one and of several: the product's own generator makes them."""
    plain = [f for f in plan_feeds(path)[0] if f.pad_mask is None or f.pad_mask.all()]
    padded = [
        f
        for f in plan_feeds(path)[0]
        if f.pad_mask is not None and f.pad_mask.any(axis=1).all() and not f.pad_mask.all()
    ]
    return tuple(dict(f.inputs) for f in (*plain[:3], *padded[:1]))


def run(seed: int, shrink: float = 60) -> Outcome:
    outcome = Outcome(seed)
    for attempt in range(ATTEMPTS):
        found = changed(seed, attempt)
        if found is None:
            continue
        model, said = found
        try:
            arrays = [dict(f) for f in feeds_of(exports()[seed % len(exports())])]
            drawn: Drawn = Pinned(model, [], set(), [], seed, arrays=arrays)
            arguments: dict[str, Any] = {"strict": True} if seed % 5 == 0 else {}
            judged = judge(drawn, arguments, facts=False)
        except Redraw as error:
            outcome.counts["redrawn"] += 1
            outcome.notes.append(f"{said}: {str(error)[-160:]}")
            continue
        outcome.counts.update(judged.counts)
        outcome.counts.update({f"fused {op}": n for op, n in judged.fused.items()})
        outcome.counts["models with a fusion"] += bool(judged.fused)
        outcome.kinds = [said.split("(")[-1].split(")")[0]]
        outcome.notes.append(said)
        if judged.fault is not None:
            outcome.fault = judged.fault.kind
            outcome.text = f"{judged.fault}\nchanged: {said}\narguments: {arguments}"
            if shrink:
                small, fault = reduce(drawn, judged.fault, lambda d: judge(d, arguments, facts=False).fault, shrink)
                outcome.text += f"\nsmaller: {told(small, fault)[:6000]}"
        return outcome
    outcome.counts["not drawn"] += 1
    return outcome


FUZZER = Campaign("near_misses", run)

if __name__ == "__main__":
    main(FUZZER)
