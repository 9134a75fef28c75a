"""onnxruntime's CUDA provider, 1.32: its documented kernels, and prices from published figures. None of it was run."""

from __future__ import annotations

from . import cpu
from .kernels import Kernels
from .prices import Prices, Rate

NAME, PROVIDER, OPSET_MAX = "cuda", "CUDAExecutionProvider", 24

# The documented kernels of the fused ops. GroupQueryAttention has no float32 there.
KERNELS: Kernels = {
    "": """
            bf16 f16 f32: Attention RotaryEmbedding
            float bf16: SimplifiedLayerNormalization
        """,
    "com.microsoft": """
            bf16 f16 f32: Attention MatMulNBits MoE MultiHeadAttention RotaryEmbedding
                SkipLayerNormalization SkipSimplifiedLayerNormalization
            bf16 f16: GroupQueryAttention GroupQueryAttention+qk_norm GroupQueryAttention+rotary
                PagedAttention QMoE SparseAttention
            f16 f32: DecoderMaskedMultiHeadAttention EmbedLayerNormalization PackedMultiHeadAttention
            float bf16: BiasGelu FastGelu FusedMatMul Gelu QuickGelu
            float: BiasSoftmax
        """,
}
BODIES: Kernels = {}
# What is not named above runs as the CPU provider does, which onnxruntime falls back to.
FALLBACK: Kernels = {"": cpu.KERNELS[""]}

# NVIDIA A100 40 GB, from its data sheet: 1,555 GB/s; 19.5 TFLOPS in float32, 312 in float16 on tensor cores; and about
# 4 us from one kernel to the next. An operator costs its traffic or its products, whichever takes longer.
PRICES = Prices(
    what="GPU time (from published figures, not measured)", launch=4_000_000, view=500_000, byte=1e12 / 1_555e9,
    mac=1e12 / 9.75e12, half_mac=1e12 / 156e12, other=Rate(0.0, 0.0),
)  # fmt: skip
