"""Is a spelling right as it is written, is it right when optimized, and is it one fused operator then?

Spellings of one operator set are judged together, as one model of parts that share nothing: reading the rules costs
more than a part does.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from grammar.writer import Arrays, Spelling
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from onnx_egraph import EGraphError, saturate_and_extract
from onnx_egraph.egraph.targets.work import Work
from onnx_egraph.egraph.terms import OPS, SILENT
from onnx_egraph.lowering.price import RAISE

TOGETHER = 400  # nodes, about
#: Operators of a file that are one fused operator.
FUSED = {
    "RotaryEmbedding": "RotaryEmbedding", "RMSNormalization": "RMSNormalization",
    "SimplifiedLayerNormalization": "RMSNormalization", "LayerNormalization": "LayerNormalization", "Gelu": "Gelu",
    "FastGelu": "FastGelu", "QuickGelu": "QuickGelu", "Attention": "Attention", "MultiHeadAttention": "Attention",
    "GroupQueryAttention": "Attention", "Sigmoid": "Sigmoid", "BiasGelu": "Gelu",
    "SkipSimplifiedLayerNormalization": "RMSNormalization", "SkipLayerNormalization": "LayerNormalization",
}  # fmt: skip


class FusedFirst:
    """What a fused operator does costs far more than it and what stands around it: casts, layout, newer operators."""

    def cost(self, work: Work) -> int:
        op = OPS.get(work.op)
        little = op is not None and (op.role == "fused" or op.layout or op.name == "Cast")
        return 0 if work.op in SILENT else 1 if little else 10 * RAISE


@dataclass
class Judged:
    """What was seen of one spelling. `written` and `wrong` say how the spelling itself, and its optimized form, differ
    from the formula; "" if they do not.
    """

    spelling: Spelling
    written: str = ""
    wrong: str = ""
    fused: bool = False
    dearer: bool = False  # it is not fused, but equal to the fused operators, whose parts cost less
    misses: bool = False  # a near miss computes something else than the formula
    stopped: str = ""  # the limit that ended it
    left: str = ""  # operators that remain, of one that is not fused

    @property
    def right(self) -> bool:
        return not self.wrong and not self.written


def model_of(spellings: Sequence[Spelling]) -> onnx.ModelProto:
    graph = onnx.GraphProto(name="spellings")
    for s in spellings:
        graph.input.extend(s.graph.input)
        graph.node.extend(s.graph.node)
        graph.initializer.extend(s.graph.initializer)
        graph.output.extend(s.graph.output)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", spellings[0].opset)], ir_version=8)


def groups(spellings: Iterable[Spelling]) -> Iterator[list[Spelling]]:
    """Of one operator set each, with different prefixes, and of not too many nodes."""
    waiting: dict[int, list[Spelling]] = defaultdict(list)
    for s in spellings:
        waiting[s.opset].append(s)
        if sum(len(w.graph.node) for w in waiting[s.opset]) >= TOGETHER:
            yield waiting.pop(s.opset)
    yield from waiting.values()


def judge(spellings: Sequence[Spelling], near_misses: bool = False) -> list[Judged]:
    """Of one operator set, with different prefixes. A near miss is compared with what it computes as it is written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # near misses may overflow
        return _judge(spellings, near_misses)


def _judge(spellings: Sequence[Spelling], near_misses: bool) -> list[Judged]:
    seen = [Judged(s) for s in spellings]
    given = model_of(spellings)
    try:
        session = _session(given)
        cases = range(max(len(s.sizes) for s in spellings))
        written = [_run(session, spellings, case) for case in cases]
    except Exception as error:  # onnxruntime's exceptions have no common base
        return _alone(spellings, near_misses, seen, "written", error)
    wanted = [[_exact(s, case) for s in spellings] for case in cases]
    for case in cases:
        for j, got, want in zip(seen, written[case], wanted[case], strict=True):
            if near_misses:
                j.misses = j.misses or bool(_differ(j.spelling, want, got, case))
            else:
                j.written = j.written or _differ(j.spelling, want, got, case)
    if near_misses:
        wanted = [[[a.astype(np.float64) for a in part] for part in ran] for ran in written]
    try:
        result = saturate_and_extract(given)
        if result.report.limits and len(spellings) > 1:  # one that does not saturate stops all
            return _apart(spellings, near_misses)
        session = _session(result.model)
        ran = [_run(session, spellings, case) for case in cases]
    except Exception as error:  # an EGraphError, or a fault
        return _alone(spellings, near_misses, seen, "wrong", error)
    for case in cases:
        for j, got, want in zip(seen, ran[case], wanted[case], strict=True):
            j.wrong = j.wrong or _differ(j.spelling, want, got, case)
    for k, j in enumerate(seen):
        if near_misses and j.wrong:
            defined = _as_defined(j.spelling, [of_all[k] for of_all in ran])
            j.wrong = "" if defined or _unsteady(j.spelling) else j.wrong
        j.stopped = result.report.stop if result.report.limits else ""
        operators = behind(result.model, j.spelling)
        j.fused = _complete(operators, j.spelling)
        if not j.fused and not j.stopped:
            other = saturate_and_extract(model_of([j.spelling]), cost=FusedFirst())
            j.dearer = _complete(behind(other.model, j.spelling), j.spelling)
        left = Counter(n.op_type for n in operators if n.op_type not in ("Constant", "Identity"))
        j.left = "" if j.fused else ", ".join(f"{n} {op}" for op, n in left.most_common())
    return seen


def _unsteady(spelling: Spelling) -> bool:
    """Whether what is computed changes as much as a fault would where nothing but rounding does: under onnxruntime's
    own optimizations, which drop the rounding to float16 between two nodes (a score beside -1e4 is a multiple of 8
    there, or one of -1e4 and 65504 nothing), or when half of all float inputs are moved to the next number.
    """
    model = model_of([spelling])
    plain, others = _session(model), list[ort.InferenceSession]()
    with suppress(InvalidArgument, Fail):  # some of its optimizations leave a graph that does not load
        others.append(_session(model, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC))
    for case in range(len(spelling.sizes)):
        (a,) = _run(plain, [spelling], case)
        again = [_run(session, [spelling], case) for session in others] + [_run(plain, [spelling], case, nudge=True)]
        if any(_differ(spelling, [x.astype(np.float64) for x in a], b, case) for (b,) in again):
            return True
    return False


def _as_defined(spelling: Spelling, results: Sequence[list[np.ndarray]]) -> bool:
    """Whether the result of each case is what onnxruntime makes of the spelling, or else what the operators are defined
    to make of it: in the types that it has, each result rounded, where onnxruntime rounds in some kernels only; or in
    float64, where the spelling itself is far from that.
    """
    model = model_of([spelling])
    defined = (_session(model), ReferenceEvaluator(model), ReferenceEvaluator(_wide(model)))
    for case, got in zip(range(len(spelling.sizes)), results, strict=False):
        wanted = ([x.astype(np.float64) for x in _run(by, [spelling], case)[0]] for by in defined)
        if all(_differ(spelling, want, got, case) for want in wanted):
            return False
    return True


def _wide(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float64."""
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    narrow = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    attributes = [a for n in wide.graph.node for a in n.attribute]
    for tensor in (*wide.graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type in narrow:
            tensor.CopyFrom(nh.from_array(nh.to_array(tensor).astype(np.float64), tensor.name))
    for a in attributes:
        if a.name == "to" and a.i in narrow:
            a.i = onnx.TensorProto.DOUBLE
    return wide


def _exact(spelling: Spelling, case: int) -> list[np.ndarray]:
    feeds = spelling.feeds(min(case, len(spelling.sizes) - 1))
    return spelling.reference({k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feeds.items()})


def _run(
    session: ort.InferenceSession | ReferenceEvaluator, spellings: Sequence[Spelling], case: int, *, nudge: bool = False
) -> list[list[np.ndarray]]:
    """The outputs of each part; with `nudge`, for inputs of which every other float is the next larger one."""
    feeds: Arrays = {}
    for s in spellings:
        feeds |= {s.prefix + k: v for k, v in s.feeds(min(case, len(s.sizes) - 1)).items()}
    names = [o.name for s in spellings for o in s.graph.output]
    if nudge:
        feeds = {k: _nudged(v) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    if isinstance(session, ReferenceEvaluator):
        wide = any(t.tensor_type.elem_type == onnx.TensorProto.DOUBLE for t in session.input_types)
        given = {k: v.astype(np.float64) if wide and v.dtype.kind == "f" else v for k, v in feeds.items()}
        with np.errstate(all="ignore"):
            outputs = iter(session.run(names, given))
    else:
        outputs = iter(session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()}))
    return [[np.asarray(next(outputs)) for _ in s.graph.output] for s in spellings]


def _nudged(array: np.ndarray) -> np.ndarray:
    moved = array.copy()
    moved.reshape(-1)[::2] = np.nextafter(moved.reshape(-1)[::2], np.asarray(np.inf, array.dtype))
    return moved


def tolerance(spelling: Spelling, exact: np.ndarray) -> np.ndarray:
    """The rounding of as many steps as the spelling has and terms as its longest sum has, which add up as their root
    (four times that, for none of so many numbers is to be beyond), of numbers as large as the largest of a row, and
    at least as large as 1: what they are sums of may be larger than they are.
    """
    steps = sum(n.op_type not in ("Identity", "Reshape", "Transpose", "Constant") for n in spelling.graph.node)
    size = np.maximum(np.abs(exact).max(axis=-1, keepdims=True, initial=0), 1)
    units = 4 * (steps + spelling.length) ** 0.5
    return np.broadcast_to(units * float(np.finfo(spelling.kind).eps) * size, exact.shape)


def _differ(spelling: Spelling, exact: list[np.ndarray], got: list[np.ndarray], case: int) -> str:
    for k, (a, b) in enumerate(zip(exact, got, strict=True)):
        if a.shape != b.shape:
            return f"output {k}, case {case}: shape {a.shape} became {b.shape}"
        near = tolerance(spelling, a)
        apart = np.abs(a - b.astype(np.float64))
        far = ~((apart <= near) | (np.isnan(a) & np.isnan(b)))
        if far.any():
            at = tuple(int(i) for i in np.argwhere(far)[0])
            return f"output {k}, case {case}: {a[at]} became {b[at]} at {list(at)}, {int(far.sum())} of {far.size}"
    return ""


def _alone(
    spellings: Sequence[Spelling], near_misses: bool, seen: list[Judged], where: str, error: Exception
) -> list[Judged]:
    """One part is to blame, and found alone."""
    if len(spellings) > 1:
        return _apart(spellings, near_misses)
    kind = "" if isinstance(error, EGraphError) else "fault: "
    setattr(seen[0], where, f"{kind}{type(error).__name__}: {_line(error)}")
    return seen


def _apart(spellings: Sequence[Spelling], near_misses: bool) -> list[Judged]:
    half = len(spellings) // 2
    return [*_judge(spellings[:half], near_misses), *_judge(spellings[half:], near_misses)]


def _line(error: Exception) -> str:
    return str(error).replace("\n", " ")[:200]


def _session(
    model: onnx.ModelProto, level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def behind(model: onnx.ModelProto, spelling: Spelling) -> list[onnx.NodeProto]:
    """The nodes that the outputs of a part hang on."""
    by = {o: n for n in model.graph.node for o in n.output}
    waiting = [o.name for o in spelling.graph.output]
    found: dict[str, onnx.NodeProto] = {}
    while waiting:
        node = by.get(waiting.pop())
        if node is not None and node.output[0] not in found:
            found[node.output[0]] = node
            waiting += node.input
    return list(found.values())


def _complete(nodes: Iterable[onnx.NodeProto], spelling: Spelling) -> bool:
    """Whether the operators that are expected are among these."""
    counts = _counts(nodes)
    return all(counts[op] >= n for op, n in spelling.expected.items())


def _counts(nodes: Iterable[onnx.NodeProto]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in nodes:
        if node.op_type in FUSED:
            counts[FUSED[node.op_type]] += 1
        if node.op_type == "GroupQueryAttention" and any(a.name == "do_rotary" and a.i for a in node.attribute):
            counts["RotaryEmbedding"] += 2  # of q and of k
    counts["Sigmoid"] += counts["QuickGelu"]  # x sigmoid(x) is that or two operators, whichever is faster
    return counts
