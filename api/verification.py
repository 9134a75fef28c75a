"""Running both models after an optimization, and finding the rule to blame when their numbers differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import Any

import onnx_ir as ir

from .egraph.budget import LimitReached
from .egraph.engine.rule import select
from .egraph.errors import EGraphError, VerificationError
from .egraph.targets import CostModel
from .lowering.files.load import Source
from .lowering.verify.runtime import DOING
from .lowering.verify.verify import Mismatch, Verification
from .lowering.verify.verify import verify as compare
from .lowering.workload import Workload
from .result import Result
from .run import Run
from .settings import Settings

Names = frozenset[str]
#: The largest size of a named dimension for all inputs that numbers are compared on; larger ones get one each.
_COMPARED = 64


def verdict(
    outcome: Verification, used: Sequence[str], right_without: Callable[[Names], bool],
    suspects: Callable[[], Sequence[str]] = list,
) -> str:  # fmt: skip
    """What the report says of a comparison. Nothing that could not be compared counts as verified.

    Raises VerificationError with the first difference if there is one, naming the rule: `right_without`
    optimizes again without some rules and says whether the numbers are right then. `suspects` are rules whose
    own step is seen to change a value, `used` all that had a part in the result, the likelier ones last.
    """
    if outcome.mismatches:
        first = outcome.mismatches[0]
        try:
            false = next((name for name in suspects() if right_without(frozenset({name}))), None)
            if false is not None:
                raise VerificationError(f"rule {false} is false: {_differs(first)}")
            names = culprits(used[::-1], right_without)
        except LimitReached as reached:
            raise VerificationError(f"{_differs(first)}; the rule is not known: {reached}") from None
        who = "and not because of the rules that were used"
        if names:
            who = f"the numbers are right without rule{'s' * (len(names) > 1)} {' and '.join(names)}"
        raise VerificationError(f"{_differs(first)}; {who}")
    said = [f"{outcome.runs} runs agree, largest difference {outcome.max_abs:.2g}"]
    if outcome.skipped or not outcome.runs:
        said = [f"NOT verified: {outcome.skipped or 'no run could be compared'}"]
    for outputs, why in (
        (outcome.excluded, "since two runs of the original differ"),
        (outcome.blank, "since empty, infinite or NaN throughout"),
        (outcome.ill_conditioned, "since rounding changes most of it beyond use"),
    ):
        if outputs:
            named = [f"{n}, by {outcome.origins[n]}" if n in outcome.origins else n for n in outputs]
            said.append(f"not compared, {why}: {', '.join(named)}")
    if outcome.runs:
        said += [f"not compared at {shorten(why, 200)}" for why in outcome.unused]
    if outcome.dropped and outcome.runs:
        said.append(f"{len(outcome.dropped)} inputs could not be used: {shorten(outcome.dropped[0], 200)}")
    return "; ".join(said)


def _differs(first: Mismatch) -> str:
    if first.kind == "error":
        where = f" on [{first.feed}]" if first.feed else ""
        mode = f", its optimizations {first.runtime}" if first.runtime else ""
        return f"onnxruntime {first.want} the original, not the optimized model{where}: {first.got}{mode}"
    apart = f" (largest difference {first.max_abs:.3g})" if first.kind == "nan" else ""
    return f"the optimized model differs in {first}{apart}"


def culprits(used: Sequence[str], right_without: Callable[[Names], bool]) -> list[str]:
    """A smallest set of rules without which the numbers are right, by halving; empty if there is none.

    One false rule among n takes about 2 log2(n) trials. A rule of the set may be true and only open the way
    to another false one that was not `used`.
    """
    if not used or not right_without(frozenset(used)):
        return []
    return _minimal(frozenset(), list(used), right_without)


def _minimal(base: Names, among: list[str], right_without: Callable[[Names], bool]) -> list[str]:
    """The rules of `among` that have to go besides `base`; without all of them the numbers are right."""
    if len(among) == 1:
        return among
    first, second = among[: len(among) // 2], among[len(among) // 2 :]
    if right_without(base | set(first)):
        return _minimal(base, first, right_without)
    if right_without(base | set(second)):
        return _minimal(base, second, right_without)
    mine = _minimal(base | set(second), first, right_without)
    return [*mine, *_minimal(base | set(mine), second, right_without)]


def verified(
    settings: Settings, run: Run, model: Source, result: Result[Any], cost: CostModel, workloads: Sequence[Workload]
) -> None:
    """Compare a result with the model that it was made of, and say so in its report.

    Raises VerificationError naming the rule that is to blame.
    """
    with run.watch.timed("verify"):
        _compare(settings, run, model, result, cost, workloads)


def _compare(
    settings: Settings, run: Run, model: Source, result: Result[Any], cost: CostModel, workloads: Sequence[Workload]
) -> None:
    source, runtime = os.fspath(model) if isinstance(model, os.PathLike) else model, settings.runtime(run.budget)
    named = {name: [w.dims[name] for w in workloads if name in w.dims] for w in workloads for name in w.dims}
    # Reference sizes may be large; most numbers are compared at small ones.
    small = {k: kept for k, sizes in named.items() if (kept := [n for n in dict.fromkeys(sizes) if n <= _COMPARED])}
    large = {k: kept for k, sizes in named.items() if (kept := [n for n in dict.fromkeys(sizes) if n > _COMPARED])}

    def compared(optimized: ir.Model) -> Verification:
        at_sizes = partial(
            compare, source, optimized, large=large, strict=run.strict, provider=run.target.provider, runtime=runtime
        )
        outcome = at_sizes(dims=small)
        if outcome.runs or outcome.mismatches or not small:
            return outcome
        free = at_sizes(dims={})  # the model does not run at these sizes
        return replace(free, unused=[*outcome.dropped[:1], *free.unused])

    def right_without(names: Iterable[str]) -> bool:
        searching = "looking for the false rule"
        run.budget.check(searching)
        run.tell(f"looking for the false rule: optimizing without {len(set(names))} rules")
        rules = select(run.rules, names)
        again = Run(rules, run.target, run.budget, lambda stage: None, run.strict)
        try:
            outcome = compared(again.extract(again.saturate(model), cost, workloads, once=True)._ir)
        except EGraphError:  # the other rules alone lead elsewhere
            return False
        run.budget.check(searching)  # else what agrees may be the model as it came
        return outcome.ok

    run.tell("verifying")
    used = {k for e in run.explainers for c in e.choice for k in e.frozen.why.get(c, ())}
    used |= {k for e in run.explainers for c in e.choice for k in e.regions.candidates(e.regions.of(c))}
    names = [run.rules[k].name for k in sorted(used)]
    outcome = compared(result._ir)
    steps = (name for e in run.explainers for name in e.false_rules(run.budget))  # that change a value
    run.report.verification = verdict(outcome, names, right_without, lambda: list(dict.fromkeys(steps)))
    run.report.verified = outcome.ok
    if run.budget.timed and outcome.skipped == str(late := run.budget.late(DOING)):
        run.stop(late)
