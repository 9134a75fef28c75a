"""onnxruntime's CPU provider, 1.32: its kernels, and its prices as measured."""

from __future__ import annotations

from collections.abc import Mapping

from .kernels import Kernels
from .prices import Prices, Rate, Ratios

NAME, PROVIDER, OPSET_MAX = "cpu", "CPUExecutionProvider", 28

# Kernel registry of the provider: the newest kernel of each op, main operand; float16 by inserted Casts where there is
# float32 (loaded for Erf, Where, Softmax, Cos, Trilu, CumSum, ...).
KERNELS: Kernels = {
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
    "com.microsoft": """
            f16 f32: Attention BiasGelu DecoderMaskedMultiHeadAttention EmbedLayerNormalization FastGelu
                FusedConv FusedGemm Gelu GroupQueryAttention MRotaryEmbedding MatMulNBits MoE
                MultiHeadAttention QuickGelu RotaryEmbedding SparseAttention TransposeMatMul
            bf16 f16 f32: QMoE ScaledSiLU SkipLayerNormalization SkipSimplifiedLayerNormalization
            float: FusedMatMul Inverse
        """,
}

# Registered, but the op's schema does not allow the type.
NOT_BY_SCHEMA: Kernels = {"com.microsoft": "f64: SkipLayerNormalization SkipSimplifiedLayerNormalization"}

# Ops without a kernel, or without one for the type, that load because onnxruntime expands their body.
BODIES: Kernels = {
    "": """
            f64: Attention
            f16 f32: HardSwish Mish
            float: GroupNormalization Swish
            float bf16: CastLike
        """,
    "com.microsoft": """
            f64: FastGelu QuickGelu
        """,
}

#: What runs elsewhere for operators that have no kernel here.
FALLBACK: Kernels = {}


_X, _C, _NONE = "x", "c", ""
# Zen 3 with AVX2, one thread, chains of one op: (time of 20 - time of 4)/16. Rates below what memory traffic costs have
# no entry. The 4-D rotary, the two Skip norms and BiasGelu follow runs inside whole layers, where their inputs are
# cold, rather than the chains. There a Skip norm saves half of a launch, and in float16 nothing; its rates make up for
# that. BiasGelu saves nothing in float32, since onnxruntime makes the bias part of the product before.
_RATES = {
    "Div": Rate(250),
    "Reciprocal": Rate(250),
    "Pow": Rate(480),
    "Sqrt": Rate(370),
    "Exp": Rate(185),
    "Log": Rate(800),
    "Erf": Rate(540),
    "Tanh": Rate(275),
    "Sigmoid": Rate(300),
    "Cos": Rate(2000),
    "Sin": Rate(2000),
    "Where": Rate(640),
    "IsNaN": Rate(300),
    "Softmax": Rate(385, 900),
    "LogSoftmax": Rate(500, 1000),
    "ReduceMean": Rate(120),
    "ReduceSum": Rate(120),
    "ReduceMax": Rate(120),
    "ReduceMin": Rate(120),
    "LayerNorm": Rate(470, 460),
    "RMSNorm": Rate(215, 210),
    "SkipLayerNorm": Rate(3400, 3700),
    "SkipRMSNorm": Rate(1500, 4500),
    "Gelu": Rate(660),
    "Gelu+tanh": Rate(520),
    "FastGelu": Rate(520),
    "BiasGelu": Rate(1000),
    "QuickGelu": Rate(430),
    "Swish": Rate(600),
    "MsRope": Rate(260, 300),
    "com.microsoft::MRotaryEmbedding": Rate(260, 300),
    "MsRope3": Rate(170, 170),
    "OnnxRope": Rate(240, 280),
    "OnnxRope3": Rate(170, 170),
    "Transpose": Rate(350, 235),
    "Slice": Rate(120, 70),
    "SliceC": Rate(120, 70),
    "Split": Rate(120, 70),
    "Concat": Rate(120, 70),
    "Gather": Rate(110, 55),
    "Expand": Rate(110, 60),
    "Cast": Rate(80, 80),
    "TopK": Rate(5000),
    "CumSum": Rate(1000),
}  # fmt: skip
_SIMPLE = frozenset(
    "Add Sub Mul Neg Abs Sum Max Min Relu Clip ClipBelow And Or Not Equal Less LessOrEqual Greater GreaterOrEqual "
    "ConstantOfShape Trilu Tile Range".split()
)
_ATTENTION: Mapping[tuple[str, bool, bool], Ratios] = {  # (op, float16, fewer key than query heads)
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
_BODIES = {
    "FastGelu": (  # a x (1 + tanh(x (b + c x x)))
        ("Mul", _X), ("Mul", _C), ("Add", _C), ("Mul", _X), ("Tanh", _NONE), ("Add", _C), ("Mul", _X), ("Mul", _C),
    ),
    "Gelu+tanh": (
        ("Pow", _C), ("Mul", _C), ("Add", _C), ("Mul", _X), ("Tanh", _NONE), ("Add", _C), ("Mul", _X), ("Mul", _C),
    ),
    "Gelu": (("Div", _C), ("Erf", _NONE), ("Add", _C), ("Mul", _X), ("Mul", _C)),  # x/sqrt(2), erf, +1, times x, /2
}  # fmt: skip

PRICES = Prices(
    what="CPU time", launch=500_000, view=200_000, byte=14.0, mac=22.0, half_mac=22.0, widening=1.15, rates=_RATES,
    rotary=Rate(170, 170), bodies=_BODIES, attention=_ATTENTION, simple=_SIMPLE, opaque=Rate(300),
)  # fmt: skip
