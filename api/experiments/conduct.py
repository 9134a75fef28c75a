"""experiment: tasks of an experiment here, or on the machines of a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType

from ..egraph.errors import EGraphError
from .apart import Crew, Outcome, apart
from .experiment import Experiment
from .findings import Findings
from .task import Task

#: How joblib gives what is done: Ray's backend has no generator.
_RETURNS = MappingProxyType({"dask": "generator", "ray": "list"})


def experiment(plan: Experiment, *, progress: Callable[[str], None] | None = None) -> Findings:
    """What the cost models choose for each model, what they say that it takes, and what it takes.

    Compared are, for each model and target, the model itself and the `plan.best` graphs of each cost model. They are
    timed as `tune` does: in turn, in sessions made in several orders, on one thread; CPU time counts. Targets of
    another provider than the CPU's are not timed. Each model is one task, in a process of its own, and for "dask" and
    "ray" on whichever machine takes it. Findings are the same on all, but for times. One that fails leaves the others
    alone. progress is called with what is being done.

    Raises EGraphError where joblib, Dask or Ray is missing or has no cluster, and where every model fails.
    """
    tell = progress or (lambda stage: None)
    tasks = [Task(plan, model) for model in plan.models if isinstance(model, str)]
    count = len(tasks) * len(plan.targets)
    tell(f"{len(tasks)} models on {len(plan.targets)} targets; timing takes {plan.seconds * count:g} s at most")
    outcomes = _here(tasks, plan.workers, tell) if plan.backend == "local" else _elsewhere(tasks, plan, tell)
    failures = {t.model: o.failure for t, o in zip(tasks, outcomes, strict=True) if o.failure}
    if len(failures) == len(tasks):
        model, failure = next(iter(failures.items()))
        raise EGraphError(f"nothing was found; model {model}: {failure}")
    return Findings(tuple(row for outcome in outcomes for row in outcome.rows), failures)


def _here(tasks: Sequence[Task], workers: int, tell: Callable[[str], None]) -> list[Outcome]:
    crew = Crew()

    def run(k: int) -> Outcome:
        return crew.run(tasks[k], partial(_told, tell, f"model {k + 1} of {len(tasks)}, {tasks[k].model}"))

    with ThreadPoolExecutor(workers) as pool:
        try:
            return list(pool.map(run, range(len(tasks))))
        except BaseException:
            crew.end()
            raise


def _told(tell: Callable[[str], None], of: str, stage: str) -> None:
    tell(f"{of}: {stage}")


def _elsewhere(tasks: Sequence[Task], plan: Experiment, tell: Callable[[str], None]) -> list[Outcome]:
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
    tell(f"{len(tasks)} models on {plan.backend}")
    outcomes = list[Outcome]()
    try:
        with joblib.parallel_config(backend=plan.backend, n_jobs=-1, **where):
            given = joblib.Parallel(return_as=_RETURNS[plan.backend])(joblib.delayed(apart)(task) for task in tasks)
            for task, outcome in zip(tasks, given, strict=True):
                outcomes.append(outcome)
                tell(f"{len(outcomes)} of {len(tasks)} models done: {task.model}")
    except (OSError, ValueError) as error:  # no client, or no scheduler at the address
        raise EGraphError(f'backend = "{plan.backend}": {str(error).splitlines()[0]}') from error
    return outcomes
