"""Cost models: what one operator costs, as an integer number of picoseconds at given reference dims.

A model prices one operator at a time; extraction adds the prices over the DAG. Whoever calls a model
substitutes the reference dims (decode, prefill, ...) into the shapes and weights the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

# Terms that are no operator of the written graph.
FREE = frozenset(
    {"Input", "Const", "Constant", "Initializer", "FConst", "Ints", "Int0", "Absent", "Out", "Cons", "Nil"}
)

# A tensor of unknown rank counts as this many elements; an unknown reduction length as this many terms.
NOMINAL_ELEMENTS = 65_536
NOMINAL_DEPTH = 256

_WIDTH = MappingProxyType(
    {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2}
    | {"int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8}
)
_HALF = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a cost model may know of a value: dtype in numpy's spelling ("" if absent) and dims.

    `shape` has the reference dims filled in; None is an unknown rank. `const` says that the value is
    known when the model is loaded: an initializer, or computed from initializers alone.
    """

    dtype: str
    shape: tuple[int, ...] | None
    const: bool = False

    @property
    def size(self) -> int:
        """Number of elements; `NOMINAL_ELEMENTS` where the rank is unknown."""
        return NOMINAL_ELEMENTS if self.shape is None else math.prod(self.shape)

    @property
    def width(self) -> int:
        """Bytes per element; types narrower than a byte and strings count as 1 and 8."""
        return 8 if self.dtype == "string" else _WIDTH.get(self.dtype, 1)


# An optional input that is left out.
ABSENT = Tensor("", (0,), True)


@dataclass(frozen=True, slots=True)
class Work:
    """One operator to be priced.

    `op` is the term's name, or the original op type of an opaque node, written "domain::Type" outside the
    default domain. Inputs keep their positions: an optional one that is left out is `ABSENT`.
    """

    op: str
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    attrs: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@runtime_checkable
class CostModel(Protocol):
    """Anything with this method prices graphs."""

    def cost(self, work: Work) -> int:
        """Picoseconds, an int >= 0. It is called once per e-node and reference point."""
        ...


@dataclass(frozen=True, slots=True)
class NodeCount:
    """Every operator costs the same, inputs and constants nothing: the fewest nodes win."""

    per_node: int = 1_000_000

    def cost(self, work: Work) -> int:
        """`per_node` picoseconds, 0 for a term that is not an operator."""
        return 0 if work.op in FREE else self.per_node


@dataclass(frozen=True, slots=True)
class Kernel:
    """Picoseconds per element of the largest operand, on one core.

    `half` is the same for float16. None: there is no such kernel, onnxruntime computes in float32.
    """

    rate: float
    half: float | None = None


# Other names of a term: opaque nodes come with the op type of the model.
_ALIAS = MappingProxyType(
    {
        "RMSNormalization": "RMSNorm",
        "SimplifiedLayerNormalization": "RMSNorm",
        "LayerNormalization": "LayerNorm",
        "SkipLN": "SkipLayerNorm",
        "SkipLayerNormalization": "SkipLayerNorm",
        "com.microsoft::SkipLayerNormalization": "SkipLayerNorm",
        "SkipSimplifiedLayerNormalization": "SkipRMSNorm",
        "com.microsoft::SkipSimplifiedLayerNormalization": "SkipRMSNorm",
        "RotaryEmbedding": "OnnxRope",
        "com.microsoft::RotaryEmbedding": "MsRope",
        "com.microsoft::MRotaryEmbedding": "MsRope",
        "Attention": "OnnxAttention",
        "com.microsoft::MultiHeadAttention": "MsMHA",
        "com.microsoft::GroupQueryAttention": "MsGQA",
        "MsGQARope": "MsGQA",
        "com.microsoft::Gelu": "Gelu",
        "com.microsoft::FastGelu": "FastGelu",
        "com.microsoft::BiasGelu": "BiasGelu",
        "com.microsoft::QuickGelu": "QuickGelu",
        "com.microsoft::FusedMatMul": "FusedMatMul",
        "com.microsoft::FusedGemm": "Gemm",
        "com.microsoft::TransposeMatMul": "FusedMatMul",
    }
)

# onnxruntime gives these their input's memory.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size"})
# These read no more of an input than they write.
_PICKS = frozenset({"Slice", "SliceC", "Gather", "GatherElements", "GatherND", "Expand", "Split"})
_MATMULS = frozenset({"MatMul", "Gemm", "FusedMatMul", "Conv", "ConvTranspose"})

# onnxruntime 1.32 CPU provider, Zen 3 with AVX2, one thread, chains of one op: (time of 20 - time of 4)/16.
# Rates below what memory traffic costs have no entry. The 4-D rotary and the two Skip norms follow runs
# inside whole layers, where their inputs are cold, rather than the chains.
KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "Div": Kernel(250),
        "Reciprocal": Kernel(250),
        "Pow": Kernel(480),
        "Sqrt": Kernel(370),
        "Exp": Kernel(185),
        "Log": Kernel(800),
        "Erf": Kernel(540),
        "Tanh": Kernel(275),
        "Sigmoid": Kernel(300),
        "Cos": Kernel(2000),
        "Sin": Kernel(2000),
        "Where": Kernel(640),
        "Softmax": Kernel(385, 900),
        "LogSoftmax": Kernel(500, 1000),
        "ReduceMean": Kernel(120),
        "ReduceSum": Kernel(120),
        "ReduceMax": Kernel(120),
        "ReduceMin": Kernel(120),
        "LayerNorm": Kernel(470, 460),
        "RMSNorm": Kernel(215, 210),
        "SkipLayerNorm": Kernel(3400, 3700),
        "SkipRMSNorm": Kernel(700, 1000),
        "Gelu": Kernel(660),
        "FastGelu": Kernel(520),
        "BiasGelu": Kernel(800),
        "QuickGelu": Kernel(430),
        "com.microsoft::ScaledSiLU": Kernel(3300, 5000),
        "Swish": Kernel(600),
        "com.microsoft::EmbedLayerNormalization": Kernel(600),
        "MsRope": Kernel(260, 300),
        "MsRope3": Kernel(170, 170),
        "OnnxRope": Kernel(240, 280),
        "OnnxRope3": Kernel(170, 170),
        "Transpose": Kernel(350, 235),
        "Slice": Kernel(120, 70),
        "SliceC": Kernel(120, 70),
        "Split": Kernel(120, 70),
        "Concat": Kernel(120, 70),
        "Gather": Kernel(110, 55),
        "Expand": Kernel(110, 60),
        "Cast": Kernel(80, 80),
        "TopK": Kernel(5000),
        "CumSum": Kernel(1000),
    }
)
_SIMPLE = frozenset(
    {"Add", "Sub", "Mul", "Neg", "Abs", "Sum", "Max", "Min", "Relu", "Clip", "And", "Or", "Not", "Equal"}
    | {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "ConstantOfShape", "Trilu", "Tile", "Range"}
)
_OPAQUE = Kernel(300)

# Time of an attention op over that of MatMul, Mul, Add, Softmax, MatMul (with the Concat of the past and the
# repeated heads where there are any), at (decode, prompts up to 128 tokens, longer prompts).
_Ratios = tuple[float, float, float]
ATTENTION: Mapping[tuple[str, bool, bool], _Ratios] = MappingProxyType(
    {  # (op, float16, fewer key than query heads)
        ("MsMHA", False, False): (0.89, 0.89, 0.92),
        ("MsMHA", True, False): (1.20, 0.90, 0.72),
        ("MsGQA", False, False): (1.23, 1.01, 0.81),
        ("MsGQA", True, False): (0.60, 0.70, 0.59),
        ("MsGQA", False, True): (0.58, 0.94, 0.71),
        ("MsGQA", True, True): (0.47, 0.75, 0.69),
        ("OnnxAttention", False, False): (0.80, 0.81, 0.91),
        ("OnnxAttention", True, False): (0.55, 1.04, 0.89),
        ("OnnxAttention", False, True): (0.46, 0.78, 0.94),
        ("OnnxAttention", True, True): (0.43, 1.19, 1.01),
        ("OnnxAttention3", False, False): (0.80, 0.81, 0.91),
        ("OnnxAttention3", True, False): (0.55, 1.85, 1.20),
        ("OnnxAttention3", False, True): (0.46, 0.78, 0.94),
        ("OnnxAttention3", True, True): (0.43, 2.10, 1.35),
    }
)
_PROMPT = 128


@dataclass(frozen=True, slots=True)
class Roofline:
    """Predicted time of onnxruntime's CPU provider on one core: dispatch, plus arithmetic or memory traffic.

    What onnxruntime computes at load (`const` outputs) costs `const`, so that fewer nodes still win. Ops
    without a float16 kernel run in float32; Gelu and FastGelu are there expanded into their parts, so the
    fused node costs what they cost. An onnxruntime that fuses a pattern at load is not modelled: the parts
    keep their own price, and the fused node is the cheaper spelling of the same kernel.
    """

    launch: int = 500_000  # ps per kernel
    view: int = 200_000  # ps per op that moves no data
    const: int = 1_000  # ps per op folded at load
    byte: float = 14.0  # ps per byte read or written
    mac: float = 22.0  # ps per float32 multiply-add of a matrix product
    cast_tax: float = 1.15  # computing float16 in float32
    kernels: Mapping[str, Kernel] = field(default_factory=lambda: KERNELS)

    def cost(self, work: Work) -> int:
        """Picoseconds: 0 for a term that is no operator, else at least `const` or `view`."""
        if work.op in FREE:
            return 0
        if work.outs and all(out.const for out in work.outs):
            return self.const
        op = _ALIAS.get(work.op, work.op)
        if op in _VIEWS:
            return self.view
        if op in _MATMULS:
            return self._product(op, work)
        if op in ("MsMHA", "MsGQA", "OnnxAttention", "OnnxAttention3"):
            three = op == "OnnxAttention" and _rank(work.ins[:1]) == 3
            return self._attention("OnnxAttention3" if three else op, work)
        if op in ("Gelu", "FastGelu") and _is_half(work):
            return sum(self.cost(part) for part in _gelu_body(op, work))
        return self._stream(op, work)

    def _stream(self, op: str, work: Work) -> int:
        """One pass over the operands."""
        kernel, half = self._kernel(op, work), _is_half(work)
        widened = half and kernel.half is None
        read, largest_in = _traffic(work.ins, widened)
        written, largest_out = _traffic(work.outs, widened)
        if op in _PICKS:
            elements, read = largest_out, min(read, written)
        else:
            elements = max(largest_in, largest_out)
        rate = kernel.half if half and kernel.half is not None else kernel.rate
        time = max(rate * elements, self.byte * (read + written))
        return self.launch + int(time * self.cast_tax if widened else time)

    def _kernel(self, op: str, work: Work) -> Kernel:
        if op in ("MsRope", "OnnxRope") and _rank(work.ins[:1]) == 3:
            return self.kernels[op + "3"]
        if op == "Gelu" and work.attrs.get("approximate") == "tanh":
            return self.kernels["FastGelu"]
        if op == "Transpose" and (kernel := _transposes(work)) is not None:
            return kernel
        if op in self.kernels:
            return self.kernels[op]
        return Kernel(0) if op in _SIMPLE else _OPAQUE

    def _product(self, op: str, work: Work) -> int:
        """A matrix product or convolution: multiply-adds, or the traffic of its operands."""
        half = _is_half(work)
        macs = sum(t.size for t in work.outs[:1]) * _depth(op, work)
        traffic = _traffic(work.ins, half)[0] + _traffic(work.outs, half)[0]
        time = max(self.mac * macs, self.byte * traffic)
        return self.launch + int(time * self.cast_tax if half else time)

    def _attention(self, op: str, work: Work) -> int:
        """Measured ratios on the price of the unfused graph.

        Each ratio weighs the tokens it was measured for (the first, up to 128, the others), which keeps the
        price growing with the prompt although the ratios fall.
        """
        heads = _heads(work)
        half = _is_half(work)
        grouped = op != "MsMHA" and heads.kv < heads.q
        ratios = ATTENTION[op, half, grouped]
        upto = [self._unfused(heads, min(heads.tokens, n), grouped) for n in (1, _PROMPT, heads.tokens)]
        time = ratios[0] * upto[0] + ratios[1] * (upto[1] - upto[0]) + ratios[2] * (upto[2] - upto[1])
        return self.launch + int(time) + self._rotary(heads, work)

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
        return sum(self.cost(part) - self.launch for part in parts)

    def _rotary(self, heads: _Heads, work: Work) -> int:
        if not _int(work.attrs, "do_rotary", 0):
            return 0
        q = heads.tensor(heads.q, heads.tokens, heads.size)
        k = heads.tensor(heads.kv, heads.tokens, heads.size)
        return sum(self._stream("MsRope3", Work("MsRope3", (t,), (t,))) - self.launch for t in (q, k))


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

    def tensor(self, *dims: int) -> Tensor:
        return Tensor(self.dtype, (self.batch, *dims))

    def mask(self, tokens: int) -> Tensor:
        return Tensor(self.dtype, (self.batch, 1, tokens, self.keys))


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
    masked = masked or _ALIAS.get(work.op, work.op) == "MsGQA"
    return _Heads(dtype, batch, tokens, keys, n, kv, size, value_size, present is not None, masked)


def _gelu_body(op: str, work: Work) -> Iterable[Work]:
    """The function bodies onnxruntime expands where it has no kernel."""
    x = (work.outs + work.ins)[:1]
    c = Tensor(x[0].dtype, (), True)
    if op == "FastGelu":  # a x (1 + tanh(x (b + c x x)))
        steps = ["Mul", "Mul", "Add", "Mul", "Tanh", "Add", "Mul", "Mul"]
    elif work.attrs.get("approximate") == "tanh":
        steps = ["Pow", "Mul", "Add", "Mul", "Tanh", "Add", "Mul", "Mul"]
    else:  # x/sqrt(2), erf, +1, times x, /2
        steps = ["Div", "Erf", "Add", "Mul", "Mul"]
    unary = ("Erf", "Tanh")
    products = {"FastGelu": (0, 3, 6)}.get(op, (3, 6))
    for i, step in enumerate(steps):
        second = () if step in unary else x if step == "Mul" and i in products else (c,)
        yield Work(step, x + second, x)


def _transposes(work: Work) -> Kernel | None:
    """The cheaper kinds of Transpose: dims of 1 move freely, whole rows move as blocks; None else."""
    perm: object = work.attrs.get("perm")
    shape = work.ins[0].shape if work.ins else None
    if not isinstance(perm, (tuple, list)) or shape is None or sorted(perm) != [*range(len(shape))]:
        return None
    order = [axis for axis in perm if shape[axis] != 1]
    if order == sorted(order):
        return Kernel(0, 0)
    return Kernel(150, 100) if order[-1] == max(order) else None


def _depth(op: str, work: Work) -> int:
    """The number of products summed into one element of the result."""
    unknown = Tensor("", None)
    a, b = (list(t.shape or ()) for t in (*work.ins[:2], unknown, unknown)[:2])
    if op in ("Conv", "ConvTranspose"):
        return math.prod(b[1:]) if b else NOMINAL_DEPTH
    if a:
        return a[-2] if len(a) > 1 and _int(work.attrs, "transA", 0) else a[-1]
    if b:
        return b[-1] if len(b) == 1 or _int(work.attrs, "transB", 0) else b[-2]
    return NOMINAL_DEPTH


def _is_half(work: Work) -> bool:
    return any(tensor.dtype in _HALF for tensor in work.ins + work.outs)


def _traffic(tensors: tuple[Tensor, ...], widened: bool) -> tuple[int, int]:
    """All bytes, with float16 as float32 if `widened`, and the elements of the largest."""
    total = largest = 0
    for tensor in tensors:
        size = tensor.size
        total += size * (4 if widened and tensor.dtype in _HALF else tensor.width)
        largest = max(largest, size)
    return total, largest


def _rank(tensors: tuple[Tensor, ...]) -> int | None:
    return len(tensors[0].shape) if tensors and tensors[0].shape is not None else None


def _int(attrs: Mapping[str, object], name: str, default: int) -> int:
    value = attrs.get(name, default)
    return value if isinstance(value, int) else default
