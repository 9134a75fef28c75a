"""Is the optimized model the same model? Everything that must hold of a result, told as one line if it does not."""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime as ort
from kernels import numpy_type
from models import Drawn, Feeds, graphs
from noise import noisy

from onnx_egraph import EGraphError, saturate_and_extract
from onnx_egraph.egraph.engine.assumption import (
    DECLARED_SIZES,
    FINITE,
    NAMES_SHARED,
    NO_CANCELLATION,
    ROWS_VISIBLE,
    SCORES_FINITE,
    SMALL_SCORES,
    ZERO_SIGNS,
)
from onnx_egraph.lowering.files.load import load
from onnx_egraph.lowering.shapes.inference import Shapes, infer
from onnx_egraph.rules import ALL

#: Rounding of a sum of so many products is at most this many units in the last place, as a rule.
UNITS = 16
RUNS = 6  # of the model with noise, to see how far rounding carries


class Redraw(Exception):
    """onnxruntime does not take the model: this says nothing about the optimizer."""


@dataclass
class Fault:
    """What is wrong. `kind` is what a smaller model must show, too."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Judged:
    """What was seen of one model."""

    fault: Fault | None = None
    fused: Counter[str] = field(default_factory=Counter)
    facts: int = 0
    counts: Counter[str] = field(default_factory=Counter)


class Session:
    """A model in onnxruntime, nothing optimized."""

    def __init__(self, model: onnx.ModelProto | Path, level: str = "ORT_DISABLE_ALL") -> None:
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        self._session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        inputs = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        self._names = {i.name for i in inputs}

    def run(self, feeds: Feeds) -> list[Any]:
        return list(self._session.run(None, {k: v for k, v in feeds.items() if k in self._names}))


def checkable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what onnxruntime has in the default domain, in any opset, moved to a domain nobody checks."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.opset_import.append(onnx.helper.make_opsetid("unchecked", 1))
    for graph in [*graphs(changed.graph)]:
        for node in graph.node:
            if node.op_type in ("SimplifiedLayerNormalization", "LayerNormalization"):
                node.domain = "unchecked"
    return changed


def complaint(model: onnx.ModelProto) -> str:
    try:
        onnx.checker.check_model(checkable(model))
    except onnx.checker.ValidationError as error:
        return str(error).replace("\n", " ")[:300]
    return ""


def face(model: onnx.ModelProto) -> list[object]:
    """Inputs and outputs as declared; of one that is declared more than once, which need not agree, name and type."""
    values = [*model.graph.input, *model.graph.output]
    times = Counter(v.name for v in values)
    return [
        v.SerializeToString() if times[v.name] == 1 else (v.name, v.type.tensor_type.elem_type) for v in values
    ]  # fmt: skip


def settings(seed: int, model: onnx.ModelProto) -> dict[str, Any]:
    """The arguments that a seed chooses: mostly the default."""
    rng = np.random.default_rng([seed, 3])
    how = rng.random()
    if how < 0.15:
        return {"strict": True}
    if how < 0.25:
        sizes = [d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim]
        names = sorted(set(filter(None, sizes)))
        return {"target": "cpu", "dims": {n: [1, int(rng.integers(1, 600))] for n in names if rng.random() < 0.7}}
    return {}


def judge(drawn: Drawn, arguments: Mapping[str, Any] | None = None, path: bool = False, facts: bool = True) -> Judged:
    """Optimize the model and compare. Raises Redraw where onnxruntime does not run the original."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both overflow and divide by zero on purpose
        return _judge(drawn, dict(arguments or {}), path, facts)


def _judge(drawn: Drawn, arguments: dict[str, Any], path: bool, facts: bool) -> Judged:
    given, feeds = drawn.model, drawn.feeds()
    try:
        session = Session(given)
        wanted = [session.run(f) for f in feeds]
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise Redraw(str(error).replace("\n", " ")) from error
    seen = Judged()
    try:
        seen.fault = _fault(drawn, arguments, path, feeds, wanted, seen)
        if seen.fault is None and facts:
            seen.fault = _facts(given, feeds, seen)
    except EGraphError as error:
        seen.fault = Fault("refused", f"{type(error).__name__}: {error}")
    except Redraw:
        raise
    except Exception as error:
        seen.fault = Fault(f"raised {type(error).__name__}", str(error).replace("\n", " ")[:300])
    if seen.fault is not None and _unwritten(given, feeds):
        raise Redraw("the original reads numbers that nobody has written")
    return seen


def _unwritten(given: onnx.ModelProto, feeds: list[Feeds]) -> bool:
    """Whether there is a Concat of an empty operand that is longer than 0: onnxruntime makes room for it."""
    opened = onnx.ModelProto()
    opened.CopyFrom(given)
    for values, f in zip(everything(opened, feeds), feeds, strict=False):
        for node in (n for n in given.graph.node if n.op_type == "Concat"):
            axis = onnx.helper.get_node_attr_value(node, "axis")
            arrays = [(values | f).get(name) for name in node.input]
            empty = [a for a in arrays if isinstance(a, np.ndarray) and not a.size and a.shape[axis]]
            if empty and np.size(values.get(node.output[0], ())):
                return True
    return False


def _optimized(given: onnx.ModelProto, arguments: Mapping[str, Any], path: bool) -> tuple[onnx.ModelProto, Any]:
    if not path:
        result = saturate_and_extract(given, **arguments)
        return result.model, result
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "a.onnx"), Path(folder, "b.onnx")
        onnx.save(given, before)
        result = saturate_and_extract(before, **arguments)
        result.save(after)
        return onnx.load(after), result


def _fault(
    drawn: Drawn, arguments: dict[str, Any], path: bool, feeds: list[Feeds], wanted: list[list[Any]], seen: Judged
) -> Fault | None:  # fmt: skip
    given = drawn.model
    before = given.SerializeToString()
    model, result = _optimized(given, arguments, path)
    seen.fused.update(result.report.counts())
    seen.counts["changed"] += not result.report.unchanged
    if given.SerializeToString() != before:
        return Fault("input changed", "the caller's model is another one")
    if face(model) != face(given):
        return Fault("interface", "inputs or outputs are declared otherwise")
    if not complaint(given) and (text := complaint(model)):
        return Fault("invalid", text)
    try:
        session = Session(model)
    except Exception as error:
        return Fault("does not load", str(error).replace("\n", " ")[:300])
    for number, (f, want) in enumerate(zip(feeds, wanted, strict=True)):
        found: Fault | None
        try:
            got = session.run(f)
        except Exception as error:
            found = Fault("does not run", f"feed {number}: " + str(error).replace("\n", " ")[:300])
            return _excused(drawn, arguments, found, result, f, seen)
        if found := _differ(drawn, result, number, f, want, got, seen):
            return _excused(drawn, arguments, found, result, f, seen)
    again, _ = _optimized(model, arguments, path=False)
    if again.SerializeToString(deterministic=True) != model.SerializeToString(deterministic=True):
        return Fault("second pass", "changes the result")
    return None


def _excused(
    drawn: Drawn, arguments: dict[str, Any], found: Fault, result: Any, feeds: Feeds, seen: Judged
) -> Fault | None:
    """None if hidden rows, numbers that are none, signs of zeros, or sizes that are not what is assumed of them are to
    blame: then `strict` keeps them.
    """
    assumptions = result.report.assumptions
    of_values = {FINITE, ROWS_VISIBLE, SCORES_FINITE, SMALL_SCORES, NO_CANCELLATION, ZERO_SIGNS} & set(assumptions)
    blamed = (of_values and found.kind != "does not run") or breaks(drawn.model, feeds, assumptions)
    if not blamed or arguments.get("strict"):
        return found
    strict = _judge(drawn, {**arguments, "strict": True}, path=False, facts=False)
    if strict.fault is None:
        seen.counts["assumed"] += 1
        return None
    return Fault(found.kind, f"{found.text}; strict, too")


def breaks(given: onnx.ModelProto, feeds: Feeds, assumptions: list[str]) -> bool:
    """Whether sizes are not what is assumed of them: one for one name of the inputs, or for one declared inside."""
    declared = list(given.graph.input)
    actual: dict[str, Any] = dict(feeds)
    if any(a.startswith(DECLARED_SIZES) for a in assumptions):
        opened = onnx.ModelProto()
        opened.CopyFrom(given)
        declared += [*given.graph.value_info, *given.graph.output]
        actual |= (everything(opened, [feeds]) or [{}])[0]
    elif not any(a.startswith(NAMES_SHARED) for a in assumptions):
        return False
    sizes: dict[str, int] = {}
    for value in declared:
        array, shape = actual.get(value.name), value.type.tensor_type.shape.dim
        if not isinstance(array, np.ndarray) or not value.type.tensor_type.HasField("shape"):
            continue
        if len(shape) != array.ndim:
            return True
        for dim, size in zip(shape, array.shape, strict=True):
            if dim.HasField("dim_value") and dim.dim_value != size:
                return True
            if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
                return True
    return False


def _differ(
    drawn: Drawn, result: Any, number: int, f: Feeds, want: list[Any], got: list[Any], seen: Judged
) -> Fault | None:
    length = max((max(a.shape, default=1) for a in (*want, *f.values())), default=1)
    rough = [difference(a, b, length) for a, b in zip(want, got, strict=True)]
    if not any(rough):
        return None
    if any(r.startswith(("type", "shape")) for r in rough):
        return Fault("shape", next(r for r in rough if r.startswith(("type", "shape"))))
    special = number == drawn.special
    spreads = noisy(drawn.model, f, RUNS, want)
    for k, (a, b, r) in enumerate(zip(want, got, rough, strict=True)):
        if not r:
            continue
        spread = None if spreads is None else spreads[k]
        if text := difference(a, b, length, spread, special):
            if special and _vanishes(drawn, result, f, k, length):
                seen.counts["overflows"] += 1
                continue
            if special and casts_undefined(drawn.model, f, drawn.model.graph.output[k].name):
                seen.counts["undefined casts"] += 1
                continue
            rules = ", ".join(sorted(_all_rules(result))[:16])
            where = f"output {drawn.model.graph.output[k].name!r} of feed {number}" + (
                " (no noise)" if spread is None else ""
            )
            kind = "special numbers" if special else "numbers"
            return Fault(kind, f"{where}: {text}; rules: {rules}")
        seen.counts["ill conditioned"] += 1
    return None


def _vanishes(drawn: Drawn, result: Any, feeds: Feeds, output: int, length: int) -> bool:
    """Whether an output does not differ where nothing is so large or so small that it overflows or underflows on the
    way, which no contract keeps; NaN and infinities stay.
    """

    def tamed(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f" and x.dtype != ml_dtypes.bfloat16:
            return x
        wide = np.abs(x.astype(np.float64))
        return np.where(np.isfinite(wide) & (wide > 100), x.dtype.type(100), np.where(wide < 1e-4, x.dtype.type(0), x))

    calm = {name: tamed(x) for name, x in feeds.items()}
    optimized = result.model if isinstance(result.model, onnx.ModelProto) else ir.to_proto(result.model)
    want, got = (Session(model).run(calm) for model in (drawn.model, optimized))
    spreads = noisy(drawn.model, calm, RUNS, want)
    return not difference(want[output], got[output], length, None if spreads is None else spreads[output], True)


def casts_undefined(model: onnx.ModelProto, feeds: Feeds, output: str) -> bool:
    """Whether an output hangs on a Cast of a float to an integer type that cannot hold it: what onnxruntime makes of
    that depends on where in the tensor it stands.
    """
    model = onnx.inliner.inline_local_functions(model)
    producers = {name: node for node in model.graph.node for name in node.output}
    casts: dict[str, int] = {}
    waiting, seen = [output], set()
    while waiting:
        node = producers.get(waiting.pop())
        if node is None or node.output[0] in seen:
            continue
        seen.add(node.output[0])
        waiting += [name for name in node.input if name]
        if node.op_type == "Cast":
            casts[node.input[0]] = next(a.i for a in node.attribute if a.name == "to")
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    del opened.graph.output[:]
    names = [name for name in casts if name in producers]
    opened.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = dict(zip(names, Session(opened).run(feeds), strict=True)) if names else {}
    for name, value in {**values, **{k: v for k, v in feeds.items() if k in casts}}.items():
        kind = numpy_type(casts[name])
        if value.dtype.kind == "f" and kind.kind in "iu":
            limits = np.iinfo(kind)
            if not ((value >= limits.min) & (value <= limits.max)).all():
                return True
    return False


def _rules(result: Any) -> list[str]:
    used = {k for e in result._explainers for c in e.choice for k in e.frozen.why.get(c, ())}
    return [ALL[k].name for k in sorted(used)]


def _all_rules(result: Any) -> set[str]:
    """Also those that made what a fused operator is made of."""
    return {name for f in result.report.fused for name in f.rules} | set(_rules(result))


def _eps(kind: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(kind).eps)


def difference(want: Any, got: Any, length: int, spread: np.ndarray | None = None, special: bool = False) -> str:
    """What differs, or "". Floats may differ by the rounding of sums of `length`, and by ten times the `spread` that
    noise has shown; where that is NaN nothing is compared. The sum of one row, its last axis, sets the scale.
    """
    if want.dtype != got.dtype:
        return f"type {want.dtype} became {got.dtype}"
    if want.shape != got.shape:
        return f"shape {want.shape} became {got.shape}"
    judged = np.ones(want.shape, bool) if spread is None else ~np.isnan(spread)
    if want.dtype.kind not in "fV":
        wrong = (want != got) & judged
        return _tell(want, got, wrong) if wrong.any() else ""
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    wrong = ~(finite | (a == b) | (np.isnan(a) & np.isnan(b))) & judged
    if wrong.any():
        return _tell(a, b, wrong)
    rounding = UNITS * length**0.5 * _eps(want.dtype)
    size = np.where(finite, np.abs(a), 0.0)
    scale = size if special else np.broadcast_to(_row(size), size.shape)
    tolerance = rounding * np.maximum(scale, float(np.finfo(np.float32).tiny))
    if spread is not None:
        apart = np.where(judged, spread, 0.0)
        tolerance = tolerance + 10 * (apart if special else np.broadcast_to(_row(apart), apart.shape))
    with np.errstate(invalid="ignore"):
        far = finite & judged & (np.abs(a - b) > tolerance)
    return _tell(a, b, far) if far.any() else ""


def _row(x: np.ndarray) -> np.ndarray:
    return x.max(axis=-1, keepdims=True) if x.ndim and x.size else x


def _tell(a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> str:
    place = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
    return f"{a[place]} became {b[place]} at {list(place)}, {int(wrong.sum())} of {wrong.size}"


def everything(proto: onnx.ModelProto, feeds: list[Feeds]) -> list[dict[str, Any]]:
    """What each value of the main graph is, for each feed; nothing where one cannot be an output. Changes `proto`."""
    listed = {o.name for o in proto.graph.output}
    more = [o for node in proto.graph.node for o in node.output if o and o not in listed]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    names = [o.name for o in proto.graph.output]
    try:
        session = Session(proto)
        return [dict(zip(names, session.run(f), strict=True)) for f in feeds]
    except Exception:  # outputs of unknown type, or of one that numpy has not
        return []


def _facts(given: onnx.ModelProto, feeds: list[Feeds], seen: Judged) -> Fault | None:
    """Whatever is claimed of a value holds in onnxruntime; and what is believed does where the feeds keep to it."""
    model = load(given).model
    ran = everything(ir.to_proto(model), feeds)
    believed = infer(model, believing=True)
    kept = [not breaks(given, f, [*believed.assumed]) for f in feeds]
    return _false(infer(model), model, feeds, ran, seen) or _false(
        believed, model, [f for f, keeps in zip(feeds, kept, strict=True) if keeps],
        [r for r, keeps in zip(ran, kept, strict=False) if keeps], seen,
    )  # fmt: skip


def _false(
    shapes: Shapes, model: ir.Model, feeds: list[Feeds], ran: list[dict[str, Any]], seen: Judged
) -> Fault | None:  # fmt: skip
    """What is claimed of a value that it is not."""
    values = {o.name: o for node in model.graph for o in node.outputs} | {v.name: v for v in model.graph.inputs}
    for f, results in zip(feeds, ran, strict=bool(ran)):
        actual = results | f
        known = {
            symbol: actual[v.name].shape[axis] for symbol, (v, axis) in shapes.sources.items() if v.name in actual
        }  # fmt: skip
        for name, array in actual.items():
            value = values.get(name)
            if value is None or not isinstance(array, np.ndarray):
                continue
            claimed = shapes.of(value)
            if claimed.dtype is not None and claimed.dtype.numpy() != array.dtype:
                return Fault("facts", f"{name!r} is said to be {claimed.dtype}, it is {array.dtype}")
            if claimed.dims is not None and len(claimed.dims) != array.ndim:
                return Fault("facts", f"{name!r} is said to have sizes {claimed.dims}, it has {array.shape}")
            pairs = [*zip(claimed.dims or (), array.shape, strict=claimed.dims is not None)]
            if claimed.elems is not None and len(claimed.elems) == array.size:
                pairs += zip(claimed.elems, map(int, array.ravel()), strict=True)
            for claim, is_ in pairs:
                seen.facts += 1
                if isinstance(claim, int):
                    right = claim == is_
                elif shapes.symbols(claim) <= known.keys():
                    right = shapes.evaluate(claim, known) == is_
                else:
                    right = known.setdefault(claim, is_) == is_ if not shapes.symbols(claim) - {claim} else True
                if not right:
                    return Fault("facts", f"{name!r}: {claim} is {is_} where {known}; all: {claimed}")
    return None
