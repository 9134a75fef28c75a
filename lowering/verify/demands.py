"""What a model demands of the sizes of its inputs, read off the symbolic shapes inside: a stack of convolutions takes
no fewer samples than it is wide, a table of positions fits one number of patches only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import onnx_ir as ir

from ..model.operators import width
from ..model.wellformed import produced
from ..shapes.dims import Dim
from ..shapes.inference import Shapes, infer, live_nodes

Sizes = dict[str, int]
Size = Callable[[ir.Value, int], int]  # of an axis of an input
#: Operators that slide a window, which has to fit into what it slides over.
_WINDOWS = frozenset({
    "Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool", "DeformConv", "STFT", "Unfold",
})  # fmt: skip
_BROADCASTS = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Where", "PRelu", "Max", "Min", "Mod"})
_LONGEST = 2**24  # elements along an axis


@dataclass(frozen=True)
class _Demand:
    """A size inside has to be `least`, or, unless `exact`, more; or 1, if it `spreads`."""

    size: str
    least: int
    exact: bool = False
    spreads: bool = False

    def met(self, found: int) -> bool:
        if self.spreads and found == 1:
            return True
        return found == self.least if self.exact else found >= self.least


class Demands:
    """The demands of one model. A `size` says which size an axis of an input has."""

    def __init__(self, model: ir.Model) -> None:
        self._shapes: Shapes = infer(model)
        self._demands: dict[_Demand, None] = {}
        self._vanishing: dict[_Demand, None] = {}  # what may be empty, as a rule
        self._inside: dict[tuple[tuple[Dim, ...], float], None] = {}
        live = live_nodes(model.graph)
        for node in model.graph:
            if live(node):
                self._read(node)
        found = (self._shapes.of(v) for v in model.graph.outputs if produced(v))
        self._outside = [(f.dims, width(f.dtype)) for f in found if f.dims is not None]

    def _read(self, node: ir.Node) -> None:
        for value in node.outputs:
            facts = self._shapes.of(value)
            if facts.dims is None or all(isinstance(d, int) for d in facts.dims):
                continue
            self._inside[facts.dims, width(facts.dtype)] = None
            for dim in facts.dims:
                if isinstance(dim, str):
                    into = self._demands if node.op_type in _WINDOWS else self._vanishing
                    into[_Demand(dim, 1)] = None
        # models that do not run come here, too
        given = [self._shapes.of(v).dims if v is not None and produced(v) else None for v in node.inputs]
        if node.op_type in _BROADCASTS:
            self._broadcast([dims for dims in given if dims is not None])
        elif node.op_type == "Conv" and len(given) > 1:
            x, w, groups = given[0], given[1], node.attributes.get_int("group", 1) or 1
            if x is not None and w is not None and len(x) > 1 and len(w) > 1 and isinstance(w[1], int):
                self._exactly(x[1], w[1] * groups, spreads=False)

    def _broadcast(self, given: Sequence[tuple[Dim, ...]]) -> None:
        for back in range(1, max(map(len, given), default=0) + 1):
            along = [dims[-back] for dims in given if len(dims) >= back]
            fixed = [d for d in along if isinstance(d, int) and d > 1]
            for dim in along:
                if fixed:
                    self._exactly(dim, fixed[0], spreads=True)

    def _exactly(self, dim: Dim, number: int, spreads: bool) -> None:
        if isinstance(dim, str):
            self._demands[_Demand(dim, number, True, spreads)] = None

    def fit(self, sizes: Sizes, free: Sequence[Set[str]], spare: int, strict: bool, size: Size) -> bool:
        """Change sizes of `free` symbols (of the first set that has any), in place, until the demands are met as far
        as they can be; whether any was changed.

        What had to grow grows on until the size it was for is `spare`, so that it is more than one. With `strict`
        nothing inside may be empty.
        """
        changed, done = False, set[_Demand]()
        demands = [*self._demands, *(self._vanishing if strict else ())]
        for _ in range(3):  # a size that serves one demand may miss another
            missed = [d for d in demands if not self._met(d, size)]
            for demand in sorted(missed, key=lambda d: (not d.exact, d.size)):
                if self._met(demand, size) or demand in done:
                    continue
                done.add(demand)
                changed |= self._serve(demand, sizes, free, spare, size)
            if not missed:
                break
        return changed

    def _met(self, demand: _Demand, size: Size) -> bool:
        found = self._number(demand.size, size)
        return found is None or demand.met(found)

    def _number(self, dim: Dim, size: Size) -> int | None:
        """What a size inside is; None where the inputs' sizes do not say."""
        if isinstance(dim, int):
            return dim
        sources = self._shapes.sources
        symbols = self._shapes.symbols(dim)
        if not symbols <= sources.keys():
            return None
        try:
            return self._shapes.evaluate(dim, {s: size(*sources[s]) for s in symbols})
        except ValueError:
            return None

    def _serve(self, demand: _Demand, sizes: Sizes, free: Sequence[Set[str]], spare: int, size: Size) -> bool:
        """Grow the free symbols of one demand together, from where they are, to the least that will do."""
        sources = self._shapes.sources
        axes = [sources[s] for s in self._shapes.symbols(demand.size) if s in sources]
        declared = [v.shape[axis] for v, axis in axes if v.shape is not None]
        names = [
            d if isinstance(d, str) else d.value or f"{v.name}[{axis}]"
            for d, (v, axis) in zip(declared, axes, strict=True) if not isinstance(d, int)
        ]  # fmt: skip
        mine = next((sorted(some) for each in free if (some := each & set(names))), list[str]())
        before = {name: sizes[name] for name in mine}

        def at(n: int, floor: bool) -> int:
            sizes.update({name: max(n, before[name]) if floor else n for name in mine})
            return self._number(demand.size, size) or 0

        def least(target: int, floor: bool) -> int | None:
            high = 1
            while at(high, floor) < target:
                high *= 2
                if high > _LONGEST:
                    return None
            low = high // 2
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if at(middle, floor) >= target else (middle, high)
            return high

        for target in [demand.least] if demand.exact else [max(spare, 1), 1]:
            n = least(target, not demand.exact) if mine else None
            if n is not None and demand.met(at(n, not demand.exact)):
                return True
        sizes.update(before)
        return False

    def largest(self, size: Size) -> tuple[float, float]:
        """Bytes of the largest tensor inside, and of the outputs together, as far as the inputs' sizes say."""

        def weight(dims: tuple[Dim, ...], each: float) -> float:
            return each * math.prod(n for d in dims if (n := self._number(d, size)) is not None)

        inside = max((weight(*found) for found in self._inside), default=0.0)
        return inside, sum(weight(*found) for found in self._outside)
