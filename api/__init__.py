"""onnx-egraph: make ONNX transformer models faster by equality saturation.

`saturate_and_extract` optimizes a model. `rule`, `check`, `prove`, `operator` and the names that laws are written in
(`lang`) are for rules of your own, `CostModel` and `Target` for costs and runtimes. Everything else is private.
"""

from __future__ import annotations

from . import rules
from .calibrate import calibrate
from .egraph.budget import Limit, Limits
from .egraph.checking.soundness import check
from .egraph.engine import lang
from .egraph.engine.lang import Sides, Tensor, apply, call, load_egglog, operator, rule
from .egraph.engine.rule import Rule
from .egraph.errors import EGraphError
from .egraph.proving.proof import Proof, prove
from .egraph.targets import CostModel, NodeCount, Roofline, Target, Work, from_kernels, target
from .experiments.conduct import experiment
from .experiments.experiment import Experiment
from .experiments.findings import Findings
from .experiments.named_cost import NamedCost
from .lowering.measure.measured import Measured
from .lowering.measure.table import Table
from .lowering.workload import Workload
from .optimize import saturate, saturate_and_extract
from .report import Report
from .result import Result
from .space import Space
from .tuning import Tuned, tune

__all__ = [
    "CostModel", "EGraphError", "Experiment", "Findings", "Limit", "Limits", "Measured", "NamedCost", "NodeCount",
    "Proof", "Report", "Result", "Roofline", "Rule", "Sides", "Space", "Table", "Target", "Tensor", "Tuned", "Work",
    "Workload", "apply", "calibrate", "call", "check", "experiment", "from_kernels", "lang", "load_egglog", "operator",
    "prove", "rule", "rules", "saturate", "saturate_and_extract", "target", "tune",
]  # fmt: skip
