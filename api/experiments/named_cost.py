"""A cost model by a name, as a file can say it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

from ..egraph.errors import CostError
from ..egraph.targets import CostModel, NodeCount, Roofline, Target
from ..lowering.measure.measured import Measured
from ..lowering.measure.table import Table

_KNOWN = ("roofline", "nodes", "measured")


@dataclass(frozen=True, slots=True)
class NamedCost:
    """A cost model. `model` is "roofline" (of the target's prices), "nodes" (all nodes cost the same), "measured" (with
    `table`, or by default the table of the machine that it is used on), or "module:attribute": an object with a method
    cost(work), or something that makes one when it is called without arguments. `name` is what findings call it.

    Raises CostError for anything else.
    """

    name: str
    model: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        for field in ("name", "model", "table"):
            if not isinstance(value := getattr(self, field), str):
                raise CostError(f"cost {self.name!r}: {field} is {value!r}; a text is wanted")
        if not self.name:
            raise CostError("a cost model is named ''; a text is wanted")
        module, colon, attribute = self.kind.partition(":")
        parts = [*module.split("."), *attribute.split(".")]
        if self.kind not in _KNOWN and not (colon and all(part.isidentifier() for part in parts)):
            raise CostError(
                f"cost {self.name!r}: there is no cost model {self.kind!r}; {', '.join(_KNOWN)} or module:attribute is"
                " wanted"
            )
        if self.table and self.kind != "measured":
            raise CostError(f"cost {self.name!r}: a table is for measured, not for {self.kind}")

    @property
    def kind(self) -> str:
        return self.model or self.name

    def load(self, target: Target, folder: Path) -> CostModel:
        """The cost model for a target. Tables and modules are looked for in a folder, modules there last.

        Raises CostError, TableError.
        """
        if self.kind == "roofline":
            return Roofline(target.prices)
        if self.kind == "nodes":
            return NodeCount()
        if self.kind != "measured":
            return self._imported(folder)
        return Measured(Table.read(folder / self.table if self.table else None), Roofline(target.prices))

    def _imported(self, folder: Path) -> CostModel:
        module, _, attribute = self.kind.partition(":")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        try:
            found: object = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
            made = found() if isinstance(found, type) or not isinstance(found, CostModel) else found  # type: ignore[operator]
        except Exception as error:  # a caller's code may raise anything
            raise CostError(f"cost {self.name!r}: {self.kind}: {type(error).__name__}: {error}") from error
        if isinstance(made, type) or not isinstance(made, CostModel):
            raise CostError(
                f"cost {self.name!r}: {self.kind} is {made!r}; an object with a method cost(work) is wanted"
            )
        return made
