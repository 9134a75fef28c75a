"""A roofline: predicted time of one operator, from the prices of a runtime."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..errors import CostError
from ..terms import OPS, SILENT
from . import cpu
from .prices import Prices, Rate
from .work import ABSENT, HALF, NOMINAL_DEPTH, TensorType, Work

# onnxruntime gives these their input's memory.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size"})
# These read no more of an input than they write.
_PICKS = frozenset({"Slice", "SliceC", "Gather", "GatherElements", "GatherND", "Expand", "Split"})
_PRODUCTS = frozenset(
    {"MatMul", "Gemm", "Conv", "ConvTranspose"}
    | {f"com.microsoft::{op}" for op in ("FusedMatMul", "TransposeMatMul", "FusedGemm")}
)
_PROMPT = 128


def _terms_by_operator() -> Mapping[str, str]:
    """The term whose price an operator of the model has, and of terms written the same the first."""
    found: dict[str, str] = {}
    for op in OPS.values():
        for form in op.forms:
            found.setdefault(form.name, op.name)
        if op.forms:
            found.setdefault(op.name, found[op.forms[-1].name])
    return MappingProxyType(found)


_TERMS = _terms_by_operator()
_ATTENTION = frozenset(op.name for op in OPS.values() if op.attends)


def idle(work: Work) -> bool:
    """Whether a runtime has nothing to compute: no operator, one computed at load, or another view of its operand."""
    return work.op in SILENT or _at_load(work) or is_view(work)


def is_view(work: Work) -> bool:
    """Whether the result is in the memory of the operand, or is known from its sizes."""
    return not _at_load(work) and _TERMS.get(work.op, work.op) in _VIEWS


def _at_load(work: Work) -> bool:
    return bool(work.outs) and all(out.const for out in work.outs)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Predicted time of an operator on one core or device: dispatch, plus arithmetic or memory traffic.

    What onnxruntime computes at load (`const` outputs) costs `const`, so that fewer nodes still win. An onnxruntime
    that fuses a pattern at load is not modeled: the parts keep their own price, and the fused node is the cheaper
    spelling of the same kernel. `cost` raises CostError for a term that has no price.
    """

    prices: Prices = field(default_factory=lambda: cpu.PRICES)

    def cost(self, work: Work) -> int:
        """Picoseconds: 0 for a term that is no operator, else at least `const` or `view`."""
        if work.op in SILENT:
            return 0
        if _at_load(work):
            return self.prices.const
        op = self._row(work)
        if op in _VIEWS:
            return self.prices.view
        if op in _PRODUCTS:
            return self._multiply(sum(t.size for t in work.outs[:1]) * _depth(op, work), work)
        if op in _ATTENTION:
            return self._attention(op, work)
        if op in self.prices.bodies and _is_half(work):
            return sum(self.cost(part) for part in _body(self.prices.bodies[op], work))
        return self._stream(self._rate(op, work), work, picks=op in _PICKS)

    def _row(self, work: Work) -> str:
        """The name under which the operator has a price."""
        rows = self.prices.rows
        op = work.op if work.op in rows else _TERMS.get(work.op, work.op)
        three = any(len(t.shape or ()) == 3 for t in work.ins[:1])
        others = (f"{op}+{work.attrs.get('approximate')}", f"{op}3" if three else op)
        return next((name for name in others if name in rows), op)

    def _rate(self, op: str, work: Work) -> Rate:
        p = self.prices
        if op == "Transpose" and op in p.rates and (rate := _transposes(work)) is not None:
            return rate
        if op in p.rates:
            return p.rates[op]
        if op in p.simple:
            return Rate(0.0)
        rate = p.other if op in OPS else p.opaque
        if rate is None:
            raise CostError(f"the term {op} has no price among those of {p.what}")
        return rate

    def _stream(self, rate: Rate, work: Work, *, picks: bool = False) -> int:
        """One pass over the operands; with `picks`, over no more of them than is written."""
        half, byte = _is_half(work), self.prices.byte
        widened = half and rate.half is None
        read, largest_in = _traffic(work.ins, widened)
        written, largest_out = _traffic(work.outs, widened)
        if picks:
            elements, read = largest_out, min(read, written)
        else:
            elements = max(largest_in, largest_out)
        time = max((rate.half if half and rate.half is not None else rate.full) * elements, byte * (read + written))
        return self.prices.launch + int(time * self.prices.widening if widened else time)

    def _multiply(self, macs: int, work: Work) -> int:
        """A matrix product or convolution: multiply-adds, or the traffic of its operands."""
        p, half = self.prices, _is_half(work)
        widened = half and p.widening != 1.0
        traffic = _traffic(work.ins, widened)[0] + _traffic(work.outs, widened)[0]
        time = max((p.half_mac if half else p.mac) * macs, p.byte * traffic)
        return p.launch + int(time * p.widening if widened else time)

    def _attention(self, op: str, work: Work) -> int:
        """Measured ratios on the price of the unfused graph; without any, products that keep the scores in the chip.

        Each ratio weighs the tokens it was measured for (the first, up to 128, the others), which keeps the
        price growing with the prompt although the ratios fall.
        """
        heads, rows = _heads(work), self.prices.attention
        half, fewer = _is_half(work), heads.kv < heads.q
        grouped = fewer and (op, half, True) in rows
        ratios = rows.get((op, half, grouped))
        if ratios is None:
            sums = heads.batch * heads.q * heads.tokens * heads.keys * (heads.size + heads.value_size)
            return self._multiply(sums, work)
        upto = [self._unfused(heads, min(heads.tokens, n), grouped) for n in (1, _PROMPT, heads.tokens)]
        time = ratios[0] * upto[0] + ratios[1] * (upto[1] - upto[0]) + ratios[2] * (upto[2] - upto[1])
        return self.prices.launch + int(time) + self._rotary(heads, work)

    def _unfused(self, heads: _Heads, tokens: int, grouped: bool) -> int:
        """Scaled dot-product attention of `tokens` queries written out, without its dispatches."""
        h = heads
        kv = h.q if grouped or h.kv > h.q else h.kv
        q, scores = h.tensor(h.q, tokens, h.size), h.tensor(h.q, tokens, h.keys)
        k, v = h.tensor(kv, h.keys, h.size), h.tensor(kv, h.keys, h.value_size)
        k_transposed, out = h.tensor(kv, h.size, h.keys), h.tensor(h.q, tokens, h.value_size)
        stored_k = h.tensor(h.kv, h.keys, h.size)
        stored_v = h.tensor(h.kv, h.keys, h.value_size)
        parts = [  # the scale is free: onnxruntime makes it part of the product at load
            Work("MatMul", (q, k_transposed), (scores,)),
            *([Work("Add", (scores, h.mask(tokens)), (scores,))] if h.masked else []),
            Work("Softmax", (scores,), (scores,)),
            Work("MatMul", (scores, v), (out,)),
        ]
        if h.appends:
            parts += [Work("Concat", (t,), (t,)) for t in (stored_k, stored_v)]
        if grouped:
            parts += [Work("Expand", (stored_k,), (k,)), Work("Expand", (stored_v,), (v,))]
        return sum(self.cost(part) - self.prices.launch for part in parts)

    def _rotary(self, heads: _Heads, work: Work) -> int:
        if not _int(work.attrs, "do_rotary", 0):
            return 0
        q = heads.tensor(heads.q, heads.tokens, heads.size)
        k = heads.tensor(heads.kv, heads.tokens, heads.size)
        rate, launch = self.prices.rotary, self.prices.launch
        return sum(self._stream(rate, Work("", (t,), (t,))) - launch for t in (q, k))


@dataclass(frozen=True, slots=True)
class _Heads:
    """The dims of an attention op."""

    dtype: str
    batch: int
    tokens: int
    keys: int
    q: int
    kv: int
    size: int
    value_size: int
    appends: bool
    masked: bool

    def tensor(self, *dims: int) -> TensorType:
        return TensorType(self.dtype, (self.batch, *dims))

    def mask(self, tokens: int) -> TensorType:
        return TensorType(self.dtype, (self.batch, 1, tokens, self.keys))


def _heads(work: Work) -> _Heads:
    """Reads [B,N,S,H] or [B,S,N*H] queries (packed with keys and values for MsGQA) and the present keys."""
    q, k, v = (*work.ins[:3], ABSENT, ABSENT, ABSENT)[:3]
    present = work.outs[1] if len(work.outs) > 1 and work.outs[1].dtype else None
    n = _int(work.attrs, "num_heads", _int(work.attrs, "q_num_heads", 16))
    kv = _int(work.attrs, "kv_num_heads", n)
    batch, tokens, size = 1, 16, 64
    if q.shape is not None and len(q.shape) == 4:
        batch, n, tokens, size = q.shape
        kv = k.shape[1] if k.shape is not None and len(k.shape) == 4 else n
    elif q.shape is not None and len(q.shape) == 3:
        packed = k.dtype == ""
        batch, tokens, size = q.shape[0], q.shape[1], q.shape[2] // max(1, n + 2 * kv if packed else n)
    keys, value_size = tokens, size
    if k.shape is not None and len(k.shape) in (3, 4):
        keys = k.shape[-2]
    if v.shape is not None and len(v.shape) in (3, 4):
        value_size = v.shape[-1] if len(v.shape) == 4 else v.shape[-1] // max(1, kv)
    if present is not None and present.shape is not None and len(present.shape) == 4:
        keys = present.shape[2]
    dtype = "float16" if _is_half(work) else "float32"
    masked = any(len(t.shape or ()) >= 2 and t.shape[-1] == keys for t in work.ins[3:] if t.shape)
    masked = masked or present is not None
    return _Heads(dtype, batch, tokens, keys, n, kv, size, value_size, present is not None, masked)


def _body(steps: Iterable[tuple[str, str]], work: Work) -> Iterable[Work]:
    """The function body onnxruntime expands where it has no kernel."""
    x = (work.outs + work.ins)[:1]
    second = {"x": x, "c": (TensorType(x[0].dtype, (), True),), "": ()}
    for op, operand in steps:
        yield Work(op, x + second[operand], x)


def _transposes(work: Work) -> Rate | None:
    """The cheaper kinds of Transpose: dims of 1 move freely, whole rows move as blocks; None else."""
    perm: object = work.attrs.get("perm")
    shape = work.ins[0].shape if work.ins else None
    if not isinstance(perm, (tuple, list)) or shape is None or sorted(perm) != [*range(len(shape))]:
        return None
    order = [axis for axis in perm if shape[axis] != 1]
    if order == sorted(order):
        return Rate(0, 0)
    return Rate(150, 100) if order[-1] == max(order) else None


def _depth(op: str, work: Work) -> int:
    """The number of products summed into one element of the result."""
    unknown = TensorType("", None)
    a, b = (list(t.shape or ()) for t in (*work.ins[:2], unknown, unknown)[:2])
    if op in ("Conv", "ConvTranspose"):
        return math.prod(b[1:]) if b else NOMINAL_DEPTH
    if a:
        return a[-2] if len(a) > 1 and _int(work.attrs, "transA", 0) else a[-1]
    if b:
        return b[-1] if len(b) == 1 or _int(work.attrs, "transB", 0) else b[-2]
    return NOMINAL_DEPTH


def _is_half(work: Work) -> bool:
    return any(tensor.dtype in HALF for tensor in work.ins + work.outs)


def _traffic(tensors: tuple[TensorType, ...], widened: bool) -> tuple[int, int]:
    """All bytes, with float16 as float32 if `widened`, and the elements of the largest."""
    total = largest = 0
    for tensor in tensors:
        size = tensor.size
        total += size * (4 if widened and tensor.dtype in HALF else tensor.width)
        largest = max(largest, size)
    return total, largest


def _int(attrs: Mapping[str, object], name: str, default: int) -> int:
    value = attrs.get(name, default)
    return value if isinstance(value, int) else default
