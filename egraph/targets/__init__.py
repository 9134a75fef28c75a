"""Runtimes, one file each, with their kernels and prices; and cost models."""

from .prices import Prices, Rate
from .roofline import Roofline, idle, is_view
from .target import MS, Target, from_kernels, target
from .work import ABSENT, CostModel, NodeCount, TensorType, Work

__all__ = [
    "ABSENT", "MS", "CostModel", "NodeCount", "Prices", "Rate", "Roofline", "Target", "TensorType", "Work",
    "from_kernels", "idle", "is_view", "target",
]  # fmt: skip
