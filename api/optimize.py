"""saturate and saturate_and_extract: read a model, saturate it, take the cheapest out of it, and say what happened."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypedDict, Unpack, overload

import onnx
import onnx_ir as ir

from .egraph.budget import Budget, Limits
from .egraph.engine.rule import Rule
from .egraph.errors import ModelError
from .egraph.targets import CostModel, Target
from .lowering.files.load import Source
from .lowering.workload import Sizes, workloads
from .result import Result
from .run import Progress
from .settings import Libraries, Settings, uncollected
from .space import Space
from .verification import verified

#: The part of the time limit that a verification is left.
_VERIFIED = 0.5


class Options(TypedDict, total=False):
    """The keyword arguments of `saturate_and_extract`."""

    rules: Iterable[Rule] | None
    disable: Iterable[str]
    cost: CostModel | None
    target: str | Target
    dims: Sizes
    limits: Limits | None
    strict: bool
    verify: bool
    custom_ops: Libraries
    progress: Progress | None


@overload
def saturate_and_extract(model: onnx.ModelProto, **options: Unpack[Options]) -> Result[onnx.ModelProto]: ...
@overload
def saturate_and_extract(model: str | os.PathLike[str] | ir.Model, **options: Unpack[Options]) -> Result[ir.Model]: ...
def saturate_and_extract(
    model: Source,
    *,
    rules: Iterable[Rule] | None = None,
    disable: Iterable[str] = (),
    cost: CostModel | None = None,
    target: str | Target = "cpu",
    dims: Sizes = None,
    limits: Limits | None = None,
    strict: bool = False,
    verify: bool = False,
    custom_ops: Libraries = (),
    progress: Progress | None = None,
) -> Any:
    """The cheapest model equal to `model` that the rules prove and the target runs.

    model: a path, an onnx.ModelProto or an onnx_ir.Model; it is not changed, and weights are neither copied
    nor loaded when they are external. rules: the laws to use (default: `rules.ALL`); disable: names of rules
    to leave out. cost: prices operators (default: a `Roofline` of the target's prices). target: "cpu", "cuda"
    or a Target. dims: reference sizes of symbolic dims, such as {"batch": 1, "seq": [1, 512]}. limits: what the
    call may take; at a limit the best graph so far is returned, or the model as it came, and `report.stop` says
    which limit it was and where. Only reading the model is never cut short. strict: keep the values of fully masked
    rows, and what NaN and infinities come to, too: rules that assume there are none are left out. verify: run both
    models and raise VerificationError, naming the rule, if they differ; `report.verification` says what was
    compared. custom_ops: libraries of operators for onnxruntime to load when it verifies; those that rules declare
    are computed by their numpy meaning.

    Raises ModelError (the input cannot be read, or contradicts itself), RuleError (a rule name is unknown),
    UnsoundMerge (a rule contradicts the facts), CostError, TargetError, VerificationError.
    """
    settings, wanted = Settings.of(rules, disable, target, limits, strict, custom_ops, progress), workloads(dims)
    budget = Budget(settings.limits)
    run = settings.run(budget)
    model_of_cost = settings.priced(cost, run.report)
    if verify:
        settings.runtime(budget).check()
        budget.kept = _VERIFIED * (budget.limits.seconds or 0.0)
    with uncollected():
        result = run.extract(run.saturate(model), model_of_cost, wanted, once=True)
    budget.kept = 0.0
    if verify:
        verified(settings, run, model, result, model_of_cost, wanted)
    return result


def saturate(
    model: Source,
    *,
    rules: Iterable[Rule] | None = None,
    disable: Iterable[str] = (),
    target: str | Target = "cpu",
    limits: Limits | None = None,
    strict: bool = False,
    custom_ops: Libraries = (),
    progress: Progress | None = None,
) -> Space:
    """All that the rules prove equal to `model`; `Space.extract` takes the cheapest out, for any cost and sizes.

    The arguments are those of `saturate_and_extract`, which is the two in a row. Tensors in memory are not copied: what
    is written into those of `model` later shows in what is taken out. Raises ModelError, RuleError, UnsoundMerge,
    TargetError.
    """
    settings = Settings.of(rules, disable, target, limits, strict, custom_ops, progress)
    with uncollected():
        saturated = settings.run(Budget(settings.limits)).saturate(model)
    return Space(settings, saturated, model)


__all__ = ["ModelError", "Progress", "Result", "Space", "saturate", "saturate_and_extract"]
