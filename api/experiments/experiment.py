"""What is compared: models, cost models, targets, workloads."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..egraph.errors import CostError, EGraphError, TargetError
from ..egraph.targets import target
from ..lowering.files.save import shown
from ..lowering.verify.session import CPU
from ..lowering.workload import Workload, from_tables, workloads
from .named_cost import NamedCost

#: Where tasks run.
BACKENDS = ("local", "dask", "ray")


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: which graphs the cost models choose for the models, and what those take.

    models: files; one task each. costs: cost models, or names of those that have one. targets: names. workloads: as
    `dims` elsewhere; what they are by default, too. best: how many graphs of each cost model are compared, beside the
    model itself. seconds: how long graphs are timed, for each model and target, at most. backend: "local", for
    processes of this machine, or "dask" or "ray", by joblib; workers: how many tasks may run at once on this machine,
    where they disturb each other; scheduler: the address of Dask's, or else of that of the current client. folder: the
    one that paths of models and tables start from; on all machines the same.

    Raises EGraphError and its kinds for what is of no use.
    """

    models: Sequence[str | os.PathLike[str]]
    costs: Sequence[NamedCost | str] = ("roofline",)
    targets: Sequence[str] = ("cpu",)
    workloads: Sequence[Workload] = field(default_factory=lambda: workloads(None))
    best: int = 2
    seconds: float = 60.0
    backend: str = "local"
    workers: int = 1
    scheduler: str = ""
    folder: str | os.PathLike[str] = ""

    def __post_init__(self) -> None:
        self._set("models", [_text("models", m) for m in _listed("models", self.models)])
        costs = _listed("costs", self.costs)
        if strange := [c for c in costs if not isinstance(c, str | NamedCost)]:
            raise CostError(f"costs: {strange[0]!r} is none; a name, or NamedCost(name, model, table), is wanted")
        self._set("costs", [NamedCost(c) if isinstance(c, str) else c for c in costs])
        self._set("targets", [_text("targets", t) for t in _listed("targets", self.targets)])
        self._set("workloads", workloads(self.workloads))
        self._set("folder", _text("folder", self.folder, empty=True))
        for name in self.targets:
            provider = target(name).provider
            if provider != CPU and (measured := [c.name for c in self.named if c.kind == "measured"]):
                raise TargetError(
                    f"targets: {name!r} runs on {provider}, and cost {measured[0]!r} holds what was measured on {CPU};"
                    " an experiment without one of them is wanted"
                )
        for what, names in (
            ("models", self.models),
            ("costs", [c.name for c in self.named]),
            ("targets", self.targets),
        ):
            if twice := [name for name in names if names.count(name) > 1]:
                raise EGraphError(f"{what}: {twice[0]!r} is there twice")
        for key in ("best", "workers"):
            number = getattr(self, key)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise EGraphError(f"{key} is {number!r}; a number from 1 up is wanted")
        known = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not known or not 0 < self.seconds < math.inf:
            raise EGraphError(f"seconds is {self.seconds!r}; a number above 0 is wanted")
        if self.backend not in BACKENDS:
            raise EGraphError(f"backend is {self.backend!r}; one of {', '.join(BACKENDS)} is wanted")
        if not isinstance(self.scheduler, str) or (self.scheduler and self.backend != "dask"):
            raise EGraphError(
                f'scheduler is {self.scheduler!r}; the address of a scheduler, for backend = "dask", is wanted'
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def named(self) -> list[NamedCost]:
        """The cost models."""
        return [c for c in self.costs if isinstance(c, NamedCost)]

    def path(self, model: str) -> Path:
        """Where a model lies."""
        return Path(self.folder) / model

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Experiment:
        """The experiment of a TOML file: its keys are the fields, but for `folder`, which is that of the file, and for
        tables `[[cost]]` and `[[workload]]`. Raises EGraphError and its kinds, and they name the file.
        """
        try:
            with open(path, "rb") as file:
                data = tomllib.load(file)
        except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise EGraphError(f"{shown(path)}: the experiment cannot be read ({why})") from error
        try:
            return cls.of({**_fields(data), "folder": Path(path).absolute().parent})
        except EGraphError as error:
            raise type(error)(f"{shown(path)}: {error}") from error

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Experiment:
        """The inverse of `plain`."""
        made = dict(data)
        if "costs" in made:
            made["costs"] = [_cost(c) for c in made["costs"]]
        if "workloads" in made:
            made["workloads"] = from_tables(made["workloads"])
        return cls(**made)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file as fields. Raises EGraphError for a key that is none, and where there is no model."""
    tables = {"cost": "costs", "workload": "workloads"}
    keys = [f.name for f in fields(Experiment) if f.name not in ("folder", *tables.values())]
    if strange := sorted(data.keys() - {*keys, *tables}):
        raise EGraphError(
            f"there is no key {strange[0]!r}; there are {', '.join(keys)}, and tables [[cost]] and [[workload]]"
        )
    if "models" not in data:
        raise EGraphError('there is no key models, such as models = ["a.onnx", "b.onnx"]')
    if "cost" in data and not (isinstance(data["cost"], list) and data["cost"]):
        raise CostError(f"cost is {data['cost']!r}; tables [[cost]] are wanted")
    return {tables.get(key, key): value for key, value in data.items()}


def _cost(table: object) -> NamedCost:
    if not isinstance(table, dict):
        raise CostError(f"cost is {table!r}; tables [[cost]] are wanted")
    names = [f.name for f in fields(NamedCost)]
    if strange := sorted(table.keys() - {*names}):
        raise CostError(f"a cost model has no {strange[0]!r}; it has {', '.join(names)}")
    if "name" not in table:
        raise CostError("a cost model has no name")
    return NamedCost(**table)


def _listed(key: str, given: object) -> list[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise EGraphError(f"{key} is {given!r}; a list of at least one is wanted")
    return list(given)


def _text(key: str, given: object, *, empty: bool = False) -> str:
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not (text or empty):
        error = TargetError if key == "targets" else EGraphError
        raise error(f"{key}: {given!r} is none; a text is wanted")
    return text
