"""What a model is run on: sizes of its symbolic dimensions, at which costs are computed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

import onnx_ir as ir

from ..egraph.errors import ModelError
from .shapes.inference import Shapes

#: Weights, of which only the ratios matter.
_LEAST, _MOST = 0.001, 1_000_000
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes that a model runs at, and how much such runs count.

    `dims` are sizes of symbolic dimensions by their names in the model. Those that it does not name are of three
    kinds: the leading ones are `batch`, lengths of integer inputs are `new` positions, other lengths are `past`
    positions, kept in a cache. `weight` multiplies all costs: the part of the runs, or of the time, that is like this.

    Raises ModelError for a size below 1, and for a weight below a thousandth or above a million: costs are whole.
    """

    name: str
    dims: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1
    batch: int = 1
    new: int = 1
    past: int = 512

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(f"a workload is named {self.name!r}; a text is wanted")
        if not isinstance(self.dims, Mapping):
            raise ModelError(f'workload {self.name!r}: dims is {self.dims!r}; such as {{"seq": 128}} is wanted')
        kinds = [("batch", self.batch), ("new", self.new), ("past", self.past)]
        for dim, size in [*((f"dims[{name!r}]", size) for name, size in self.dims.items()), *kinds]:
            if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
                raise ModelError(f"workload {self.name!r}: {dim} is {size!r}; a size of at least 1 is wanted")
        known = isinstance(self.weight, Real) and not isinstance(self.weight, bool)
        if not known or not _LEAST <= self.weight <= _MOST:
            raise ModelError(
                f"workload {self.name!r}: its weight is {self.weight!r}; a number from {_LEAST} to {_MOST} is wanted"
            )


#: What callers say of sizes: of dimensions by name, one or one for each workload; or workloads; or nothing.
Sizes = Mapping[str, int | Sequence[int]] | Iterable[Workload] | None
#: One new position after 512, and a prompt.
DECODE, PREFILL = Workload("decode"), Workload("prefill", new=128)


def workloads(given: object) -> list[Workload]:
    """Workloads as they are given: none, by sizes of dimensions (one, or one for each workload), or as such.

    Raises ModelError for what is none.
    """
    if isinstance(given, Mapping | None):
        return _by_sizes({} if given is None else {name: _sizes(name, sizes) for name, sizes in given.items()})
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else []
    if not found or not all(isinstance(w, Workload) for w in found):
        raise ModelError(
            f'dims is {given!r}; a mapping of names to sizes, such as {{"batch": 1}}, or a list of Workload is wanted'
        )
    names = [w.name for w in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ModelError(f"two workloads are named {twice[0]!r}")
    return found


def from_file(path: str | os.PathLike[str]) -> list[Workload]:
    """The workloads of a TOML file: tables `[[workload]]` with the fields of `Workload`. Raises ModelError."""
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except (OSError, ValueError) as error:  # what is no TOML, or no text
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{os.fspath(path)}: workloads cannot be read ({why})") from error
    try:
        if data.keys() != {"workload"} or not data["workload"]:
            raise ModelError("tables [[workload]] are wanted, and nothing else")
        return from_tables(data["workload"])
    except ModelError as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from error


def from_tables(tables: object) -> list[Workload]:
    """The workloads that tables `[[workload]]` of a TOML file say. Raises ModelError."""
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ModelError("tables [[workload]] are wanted, and nothing else")
    names = [f.name for f in fields(Workload)]
    for table in tables:
        if strange := sorted(table.keys() - {*names}):
            raise ModelError(f"a workload has no {strange[0]!r}; it has {', '.join(names)}")
        if "name" not in table:
            raise ModelError("a workload has no name")
    return workloads([Workload(**table) for table in tables])


def _sizes(name: str, sizes: Any) -> list[int]:
    given = list(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes) else [sizes]
    if not given or not all(isinstance(n, Integral) and not isinstance(n, bool) and int(n) > 0 for n in given):
        raise ModelError(f"dims[{name!r}] is {sizes!r}; a size, or a list of sizes, of at least 1 is wanted")
    return [int(n) for n in given]


def _by_sizes(dims: Mapping[str, Sequence[int]]) -> list[Workload]:
    """Decode, prefill, and as many more as the longest list has; the last size of a shorter one is used again."""
    count = max([2, *map(len, dims.values())])
    kinds = [DECODE, PREFILL, *(Workload(f"prefill {k}", new=128) for k in range(2, count))]
    return [
        Workload(kind.name, {name: sizes[min(k, len(sizes) - 1)] for name, sizes in dims.items()}, new=kind.new)
        for k, kind in enumerate(kinds)
    ]


def check(shapes: Shapes, wanted: Iterable[Workload]) -> None:
    """Raises ModelError for a size of a dimension that no input of the model has."""
    declared = sorted(filter(None, shapes.named))
    for workload in wanted:
        for name in workload.dims:
            if name not in declared:
                raise ModelError(f"no input of the model has a dimension named {name!r}; there are {declared}")


def at(shapes: Shapes, workload: Workload) -> dict[str, int]:
    """The size of each symbol of a model's inputs."""
    wished = {symbol: size for name, size in workload.dims.items() for symbol in shapes.named.get(name, ())}
    batches = {str(v.shape[0]) for v, a in shapes.sources.values() if v.shape is not None and not a}
    integers = {v: v.shape for v, _ in shapes.sources.values() if v.dtype in _INTEGERS and v.shape is not None}
    lengths = {str(s[-1]) for s in integers.values() if len(s) > 1}  # of ids, whatever axis of others they lead
    sizes: dict[str, int] = {}
    for symbol, (value, axis) in shapes.sources.items():
        name = "" if value.shape is None else str(value.shape[axis])
        batch = name not in lengths and (axis == 0 or name in batches)
        new = name in lengths or value.dtype in _INTEGERS
        default = workload.batch if batch else workload.new if new else workload.past
        sizes[symbol] = wished.get(symbol, default)
    return sizes
