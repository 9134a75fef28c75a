"""Execution targets: which operators a provider of onnxruntime runs, for which element types. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from .dtypes import CODES
from .errors import TargetError
from .terms import FLOAT, OPS

MS = "com.microsoft"

@dataclass(frozen=True)
class Target:
    """A provider of one onnxruntime version, as (domain, op type, dtype) triples that load and run.

    The dtype is that of the op's main operand, in numpy's spelling; the default domain is "".
    """

    name: str
    provider: str
    opset_max: int
    ops: frozenset[tuple[str, str, str]]

    def supports(self, domain: str, op: str, dtype: str) -> bool:
        """Whether a node of this type and main dtype loads. "ai.onnx" is the default domain."""
        return ("" if domain == "ai.onnx" else domain, op, dtype) in self.ops

    @property
    def legal(self) -> frozenset[tuple[str, int]]:
        """The same for the terms of an e-graph: (term name, ONNX number of the dtype)."""
        kinds: dict[tuple[str, str], set[int]] = {}
        for domain, op, dtype in self.ops:
            kinds.setdefault((domain, op), set()).add(CODES[dtype])
        # Which form is written depends on the model's operator set, so a term is legal where all of them are.
        legal = {
            name: set.intersection(*(kinds.get((f.domain, f.kernel), set()) for f in op.forms))
            for name, op in OPS.items() if op.forms
        }  # fmt: skip
        # An attribute is a float32, too coarse for operands of float64.
        coarse = {name for name, op in OPS.items() if op.forms and (op.single or FLOAT in op.sorts)}
        return frozenset(
            (name, code) for name, codes in legal.items() for code in codes
            if not (name in coarse and code == CODES["float64"])
        )  # fmt: skip


class Kernel(Protocol):
    """One entry of `onnxruntime.capi._pybind_state.get_all_opkernel_def()`."""

    @property
    def domain(self) -> str: ...
    @property
    def op_name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def version_range(self) -> tuple[int, int]: ...
    @property
    def type_constraints(self) -> Mapping[str, Sequence[str]]: ...


_LATEST = 2**31 - 1
# Registered for double, but the op's schema does not allow it.
_NO_DOUBLE = frozenset({(MS, "SkipLayerNormalization"), (MS, "SkipSimplifiedLayerNormalization")})


def from_kernels(
    kernels: Iterable[Kernel],
    name: str = "cpu",
    provider: str = "CPUExecutionProvider",
    opset_max: int = 28,
) -> Target:
    """The target of an installed onnxruntime, from its registered kernels; names as in `target`.

    Counts the newest kernel of each op, and for the CPU provider what needs none: float16 by Casts that
    onnxruntime inserts wherever it has float32, and the ops it expands into their parts. Raises TargetError
    if the provider has no kernels.
    """
    ops: set[tuple[str, str, str]] = set()
    for kernel in kernels:
        if kernel.provider != provider or kernel.version_range[1] != _LATEST:
            continue
        domain = "" if kernel.domain == "ai.onnx" else kernel.domain
        constraints = kernel.type_constraints
        types = next((constraints[key] for key in ("T", "T1", "V") if key in constraints), ())
        names = (_ORT_TYPES.get(text.removeprefix("tensor(").removesuffix(")")) for text in types)
        ops |= {(domain, kernel.op_name, dtype) for dtype in names if dtype}
    if not ops:
        raise TargetError(f"onnxruntime has no kernels for {provider}: is that provider installed?")
    ops -= {(*kind, "float64") for kind in _NO_DOUBLE}
    if provider == "CPUExecutionProvider":
        ops |= {(domain, op, "float16") for domain, op, dtype in ops if dtype == "float32"}
        ops |= _expand(_CPU_BODIES)
    return Target(name, provider, opset_max, frozenset(ops))


def target(name: str) -> Target:
    """The built-in target of that name: "cpu" (onnxruntime 1.32) or "cuda" (its documented kernels).

    "cuda" was not run. It holds the documented types of the fused ops, and for the other ops of the default
    domain what the CPU provider, which onnxruntime falls back to, can load. Raises TargetError listing the
    known names.
    """
    if name not in _TARGETS:
        raise TargetError(f"no target {name!r}; known targets: {', '.join(sorted(_TARGETS))}")
    provider, opset_max, tables = _TARGETS[name]
    ops: set[tuple[str, str, str]] = set()
    for table in tables:
        added = _expand(table)
        if table is _CUDA:  # replaces what it names
            named = {(domain, op) for domain, op, _ in added}
            ops = {entry for entry in ops if entry[:2] not in named}
        ops |= added
    return Target(name, provider, opset_max, frozenset(ops))


def _expand(table: _Table) -> set[tuple[str, str, str]]:
    """The triples of a table."""
    ops: set[tuple[str, str, str]] = set()
    for domain, text in table.items():
        dtypes: list[str] = []
        for line in text.splitlines():
            names, colon, row = line.rpartition(":")
            if colon:
                dtypes = _dtypes(names)
            ops |= {(domain, op, dtype) for op in row.split() for dtype in dtypes}
    return ops


def _dtypes(names: str) -> list[str]:
    return [
        dtype
        for name in names.split()
        for dtype in (_dtypes(_SETS[name]) if name in _SETS else [_SHORT[name]])
    ]


_SHORT: Mapping[str, str] = MappingProxyType(
    {
        "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "b1": "bool",
        "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
        "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    }
)  # fmt: skip
_ORT_TYPES: Mapping[str, str] = MappingProxyType(
    {name: name for name in _SHORT.values() if name not in ("float32", "float64")}
    | {"float": "float32", "double": "float64"}
)
# Groups of dtypes in the tables below.
_SETS: Mapping[str, str] = MappingProxyType(
    {
        "any": "float int bf16 b1",
        "float": "f16 f32 f64",
        "int": "i8 i16 i32 i64 u8 u16 u32 u64",
    }
)
# domain -> lines "dtype ...: Op ...", a deeper indent goes on with the ops.
_Table = Mapping[str, str]

# onnxruntime 1.32, kernel registry of the CPU provider: the newest kernel of each op, main operand; float16
# by inserted Casts where there is float32 (loaded for Erf, Where, Softmax, Cos, Trilu, CumSum, ...).
_CPU: _Table = MappingProxyType(
    {
        "": """
            f16 f32: Acos Acosh Asin Asinh Atan Atanh Attention AveragePool Col2Im Conv ConvTranspose
                Cosh Det Elu Erf Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool HardSigmoid Hardmax
                InstanceNormalization LRN LeakyRelu LpPool MaxRoiPool MaxUnpool Mean
                MeanVarianceNormalization Multinomial PRelu QuantizeLinear RNN RotaryEmbedding Selu Sinh
                Softplus Softsign Tan ThresholdedRelu
            float: AffineGrid BatchNormalization Ceil Cos DFT DeformConv Dropout Exp Floor GRU Gemm
                GridSample LSTM Log LogSoftmax LpNormalization RMSNormalization RandomNormal
                RandomUniform Reciprocal RoiAlign Round STFT Sigmoid Sin Softmax Sqrt Sum Tanh
            float bf16: Celu IsInf IsNaN LayerNormalization SimplifiedLayerNormalization
            any: Cast Compress Concat Flatten Gather GatherElements GatherND Identity If Loop
                RandomNormalLike RandomUniformLike Reshape ReverseSequence Scan ScatterElements
                ScatterND Shape Slice Split Squeeze TensorScatter Transpose Unsqueeze
            float int: Abs Add Div Greater GreaterOrEqual Less LessOrEqual Mod Mul Sub
            float int b1: Equal Expand Size Tile
            float int bf16: BitCast Shrink Sign
            int: BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
            float i32 i64: CumSum Pow ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean
                ReduceProd ReduceSum ReduceSumSquare
            i32 i64: BlackmanWindow HammingWindow HannWindow MelWeightMatrix TfIdfVectorizer
            b1: And Not Or Xor
            i8 u8: ConvInteger MatMulInteger QLinearConv QLinearMatMul
            float i8 i32 i64 u8 u32 u64: Clip Max Min
            float i8 u8: DepthToSpace MaxPool SpaceToDepth
            float i8 i32 i64 u8: ArgMax ArgMin
            float i32 i64 u32 u64: CumProd MatMul
            float b1 i8 i32 i64 u8: ReduceMax ReduceMin
            i64: ConstantOfShape
            i8 i16 i32 u8 u16: DequantizeLinear
            float bf16 i32 i64: Einsum
            float i32 i64 u64: EyeLike
            float i8 i16 i32 i64: Neg
            b1 f16 f32 i32 i64 u8: NonZero
            f16 f32 i32 i64: OneHot
            float b1 bf16 i8 i32 i64 u8 u32 u64: Pad
            float i16 i32 i64: Range
            float i8 i32: Relu
            f16 f32 i8 i32 u8: Resize
            float i8 i16 i32 i64 u8: TopK
            float b1 i32 i64: Trilu
            float bf16 i8 i64: Unique
            float i8 i32 i64 u8 u32: Where
        """,
        MS: """
            f16 f32: Attention BiasGelu DecoderMaskedMultiHeadAttention EmbedLayerNormalization FastGelu
                FusedConv FusedGemm Gelu GroupQueryAttention MRotaryEmbedding MatMulNBits MoE
                MultiHeadAttention QuickGelu RotaryEmbedding SparseAttention TransposeMatMul
            bf16 f16 f32: QMoE ScaledSiLU SkipLayerNormalization SkipSimplifiedLayerNormalization
            float: FusedMatMul Inverse
        """,
    }
)
# Ops without a CPU kernel, or without one for the type, that load because onnxruntime expands their body.
_CPU_BODIES: _Table = MappingProxyType(
    {
        "": """
            f64: Attention
            f16 f32: HardSwish Mish
            float: GroupNormalization Swish
            float bf16: CastLike
        """,
        MS: """
            f64: FastGelu QuickGelu
        """,
    }
)
# onnxruntime's documented CUDA kernels of the fused ops. GroupQueryAttention has no float32 there.
_CUDA: _Table = MappingProxyType(
    {
        "": """
            bf16 f16 f32: Attention RotaryEmbedding
            float bf16: SimplifiedLayerNormalization
        """,
        MS: """
            bf16 f16 f32: Attention MatMulNBits MoE MultiHeadAttention RotaryEmbedding
                SkipLayerNormalization SkipSimplifiedLayerNormalization
            bf16 f16: GroupQueryAttention GroupQueryAttention+qk_norm GroupQueryAttention+rotary
                PagedAttention QMoE SparseAttention
            f16 f32: DecoderMaskedMultiHeadAttention EmbedLayerNormalization PackedMultiHeadAttention
            float bf16: BiasGelu FastGelu FusedMatMul Gelu QuickGelu
            float: BiasSoftmax
        """,
    }
)
_TARGETS: Mapping[str, tuple[str, int, tuple[_Table, ...]]] = MappingProxyType(
    {
        "cpu": ("CPUExecutionProvider", 28, (_CPU, _CPU_BODIES)),
        "cuda": ("CUDAExecutionProvider", 24, (MappingProxyType({"": _CPU[""]}), _CUDA)),
    }
)
