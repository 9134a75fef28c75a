"""experiment: trials of an experiment here, or on the machines of a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..egraph.errors import EGraphError
from .apart import Crew, Outcome, apart
from .experiment import Experiment
from .findings import Findings
from .trial import Trial


def experiment(plan: Experiment, *, progress: Callable[[str], None] | None = None) -> Findings:
    """What the cost models choose for each model, what they say that it takes, and what it takes.

    Compared are, for each model and target, the model itself and the `plan.best` graphs of each cost model. They are
    timed as `tune` does: in turn, in sessions made in several orders, on one thread; CPU time counts. Targets of
    another provider than the CPU's are not timed. Each model is one trial, in a process of its own, and for "dask" and
    "ray" on whichever machine takes it. Findings are the same on all, but for times. One that fails leaves the others
    alone. progress is called with what is being done.

    Raises EGraphError where joblib, Dask or Ray is missing or has no cluster, and where every model fails.
    """
    tell = progress or (lambda stage: None)
    trials = [Trial(plan, model) for model in plan.models if isinstance(model, str)]
    outcomes = _here(trials, plan.workers, tell) if plan.backend == "local" else _elsewhere(trials, plan, tell)
    failures = {t.model: o.failure for t, o in zip(trials, outcomes, strict=True) if o.failure}
    if len(failures) == len(trials):
        model, failure = next(iter(failures.items()))
        raise EGraphError(f"nothing was found; model {model}: {failure}")
    return Findings(tuple(row for outcome in outcomes for row in outcome.rows), failures)


def _here(trials: Sequence[Trial], workers: int, tell: Callable[[str], None]) -> list[Outcome]:
    crew = Crew()

    def run(k: int) -> Outcome:
        return crew.run(trials[k], partial(_told, tell, f"model {k + 1} of {len(trials)}, {trials[k].model}"))

    with ThreadPoolExecutor(workers) as pool:
        try:
            return list(pool.map(run, range(len(trials))))
        except BaseException:
            crew.end()
            raise


def _told(tell: Callable[[str], None], of: str, stage: str) -> None:
    tell(f"{of}: {stage}")


def _elsewhere(trials: Sequence[Trial], plan: Experiment, tell: Callable[[str], None]) -> list[Outcome]:
    """By joblib. Raises EGraphError where it, or the cluster, is not there."""
    try:
        joblib = importlib.import_module("joblib")
        if plan.backend == "ray":
            importlib.import_module("ray.util.joblib").register_ray()
        else:
            importlib.import_module("distributed")
    except ImportError as error:
        hint = 'pip install "onnx-egraph[experiment]"' + (" ray" if plan.backend == "ray" else "")
        raise EGraphError(f'backend = "{plan.backend}" needs {error.name}: {hint}') from error
    where = {"scheduler_host": plan.scheduler} if plan.scheduler else {}
    tell(f"{len(trials)} models on {plan.backend}")
    outcomes = list[Outcome]()
    try:
        with joblib.parallel_config(backend=plan.backend, n_jobs=-1, **where):
            given = joblib.Parallel(return_as="generator")(joblib.delayed(apart)(trial) for trial in trials)
            for trial, outcome in zip(trials, given, strict=True):
                outcomes.append(outcome)
                tell(f"{len(outcomes)} of {len(trials)} models done: {trial.model}")
    except (OSError, ValueError) as error:  # no client, or no scheduler at the address
        raise EGraphError(f'backend = "{plan.backend}": {str(error).splitlines()[0]}') from error
    return outcomes
