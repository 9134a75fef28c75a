"""Measured prices, in a file that is whole at any time."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ...egraph.errors import OutputError, TableError
from ...egraph.targets import ABSENT, TensorType, Work
from ..files.save import Named, destination, put, shown
from .machine import Machine
from .nodes import as_node

#: Of the file's structure.
_FORMAT = 1
#: Picoseconds, more than a week.
_DEAREST = 10**18
_TENSOR = re.compile(r"(const )?(outer )?([a-z]+[0-9]*)\[([0-9,]*)\]")


@dataclass(frozen=True, slots=True)
class Price:
    """A work and what it takes."""

    work: Work
    picoseconds: int


@dataclass(slots=True)
class Table:
    """What works take on a machine: `entries` and, for works that cannot be run alone, the reasons, by `key`.

    `reference` are the seconds that the kernel took which tells how fast the machine was, `node` the picoseconds that
    an operator takes more among others than in a row of its own kind; both 0 until they are known. `path` is where
    `save` writes it. Of the works of the last calibration, it `added` so many entries, `left` so many without, of which
    `unfit` cannot be measured.
    """

    path: Path
    machine: Machine = field(default_factory=Machine.this)
    entries: dict[str, Price] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    reference: float = 0.0
    node: int = 0
    added: int = 0
    left: int = 0
    unfit: int = 0

    @classmethod
    def open(cls, path: Named | None = None, machine: Machine | None = None) -> Table:
        """The table in a file, or an empty one where there is none. Raises TableError as `read`."""
        machine = machine or Machine.this()
        place = _place(path, machine)
        return cls.read(place, machine) if os.path.lexists(place) else cls(place, machine)

    @classmethod
    def read(cls, path: Named | None = None, machine: Machine | None = None) -> Table:
        """The table in a file, by default that of this machine in the user's folder of caches.

        Raises TableError where there is none, for one that is damaged, and for one of another machine.
        """
        machine = machine or Machine.this()
        place = _place(path, machine)
        try:
            text = place.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            option = "" if path is None else f" --table {shown(place)}"
            raise TableError(
                f"there is no table of measured prices at {shown(place)}: make one by onnx-egraph calibrate"
                f" MODEL{option}"
            ) from error
        except (OSError, UnicodeError) as error:
            raise TableError(f"cannot read the table {shown(place)}: {error}") from error
        try:
            given = json.loads(text)
            if given["format"] != _FORMAT:
                raise ValueError(f"its format is {given['format']!r}, not {_FORMAT}")
            made_on = dict(given["machine"])
            entries = [_entry(item) for item in given["entries"]]
            refused = {str(k): str(reason) for k, reason in given["refused"].items()}
            reference, node = float(given["reference"]), given["node"]
            if not 0 <= reference < float("inf"):
                raise ValueError(f"its reference is {reference!r}")
            if not _is_price(node):
                raise ValueError(f"a node takes {node!r} picoseconds")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TableError(
                f"{shown(place)} is no table of measured prices, or is damaged ({type(error).__name__}: {error});"
                " delete it and calibrate again"
            ) from error
        if other := machine.differences(made_on):
            raise TableError(
                f"the table {shown(place)} was measured elsewhere: {'; '.join(other)}; calibrate here into another file"
            )
        return cls(place, machine, {key(e.work): e for e in entries}, refused, reference, node)

    def add(self, work: Work, picoseconds: int) -> None:
        attrs = described(work)["attrs"]
        self.entries[key(work)] = Price(Work(work.op, work.ins, work.outs, attrs), picoseconds)

    def refuse(self, work: Work, reason: str) -> None:
        """Enter that a work cannot be measured."""
        self.refused[key(work)] = reason

    def __contains__(self, work: Work) -> bool:
        """Whether a work was measured."""
        return key(work) in self.entries

    def knows(self, work: Work) -> bool:
        """Whether nothing is left to measure of a work."""
        known = key(work)
        return known in self.entries or known in self.refused

    def save(self) -> None:
        """Write it to its place, which holds the old one until then. Raises OutputError."""
        self.make_room()
        put(self.path, self._text())

    def make_room(self) -> None:
        """Make the folder it lies in, if there is none. Raises OutputError where it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {shown(self.path)}: {error.strerror or error}") from error
        destination(self.path)

    def _text(self) -> str:
        """JSON with one entry a line."""
        items = (
            json.dumps({**described(entry.work), "ps": entry.picoseconds})
            for _, entry in sorted(self.entries.items())
        )  # fmt: skip
        head = {"format": _FORMAT, "machine": asdict(self.machine), "reference": self.reference, "node": self.node}
        tail = {"refused": dict(sorted(self.refused.items()))}
        body = ",\n".join(items)
        return f'{json.dumps(head)[:-1]}, "entries": [\n{body}\n], {json.dumps(tail, indent=1)[1:]}\n'


def _place(path: Named | None, machine: Machine) -> Path:
    if not isinstance(path, str | os.PathLike | None):
        raise TableError(f"the table is {path!r}; a Table, or the path of a file, is wanted")
    return machine.file if path is None else Path(path)


def key(work: Work) -> str:
    """Equal for works that take the same: of one operator, types, shapes, constants and attributes."""
    return json.dumps(described(as_node(work)), sort_keys=True)


def described(work: Work) -> dict[str, Any]:
    """A work as JSON has it. What a result holds is known only after the run, or it would not be measured."""
    return {
        "op": work.op, "ins": [_tensor(t) for t in work.ins], "outs": [_tensor(t) for t in work.outs],
        "attrs": {name: _plain(value) for name, value in work.attrs.items()},
    }  # fmt: skip


def _tensor(t: TensorType) -> str:
    if t.dtype == "":
        return ""
    dims = "?" if t.shape is None else ",".join(map(str, t.shape))
    return f"{'const ' if t.const else ''}{'outer ' if t.outer else ''}{t.dtype}[{dims}]"


def _read_tensor(text: str) -> TensorType:
    """Raises ValueError."""
    if text == "":
        return ABSENT
    found = _TENSOR.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no tensor")
    const, outer, dtype, dims = found.groups()
    return TensorType(dtype, tuple(map(int, filter(None, dims.split(",")))), bool(const), bool(outer))


def _entry(item: Mapping[str, Any]) -> Price:
    """Raises ValueError, TypeError, KeyError, AttributeError."""
    ps = item["ps"]
    if not _is_price(ps) or not isinstance(item["op"], str):
        raise ValueError(f"{item['op']!r} takes {ps!r} picoseconds")
    ins, outs = (tuple(map(_read_tensor, item[side])) for side in ("ins", "outs"))
    return Price(Work(item["op"], ins, outs, dict(item["attrs"].items())), ps)


def _is_price(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _DEAREST


def _plain(value: object) -> Any:
    """An attribute as JSON has it; a tensor by a digest, a graph by its kind."""
    match value:
        case bool() | int() | float() | str() | None:
            return value
        case tuple() | list():
            return [_plain(item) for item in value]
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case ir.TensorProtocol():
            digest = hashlib.sha256(value.tobytes()).hexdigest()[:16]
            return f"{value.dtype.name}{list(value.shape.numpy())} {digest}"
        case _:
            return f"<{type(value).__name__}>"
