"""onnx-egraph: make ONNX transformer models faster by equality saturation."""

from __future__ import annotations

from .egraph.budget import Limits
from .egraph.engine.rule import Rule
from .egraph.errors import EGraphError
from .egraph.targets import CostModel, NodeCount, Roofline
from .optimize import saturate_and_extract
from .report import Report
from .result import Result

__all__ = [
    "CostModel", "EGraphError", "Limits", "NodeCount", "Report", "Result", "Roofline", "Rule", "saturate_and_extract",
]  # fmt: skip
