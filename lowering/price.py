"""A cost model's prices of what may be printed."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from textwrap import shorten

import onnx_ir as ir

from ..egraph.budget import Budget
from ..egraph.engine.frozen import Row
from ..egraph.errors import CostError
from ..egraph.extraction.problem import ENode
from ..egraph.targets import CostModel, Work
from .offers import Offers, Question

#: Picoseconds charged once for raising the model's opset, at workloads whose weights are 1 in the mean: it must pay,
#: since onnxruntime's own fusions differ there.
RAISE = 5_000_000
#: Picoseconds. Sums of such are still numbers that a solver takes.
_DEAREST = 10**100


class Pricer:
    """Costs of what is on offer; the cost model is asked each question once."""

    def __init__(self, offers: Offers, model: CostModel) -> None:
        self._offers, self._model = offers, model
        self._weights = [w.weight for w in offers.workloads]
        self.raising = round(RAISE * float(sum(self._weights)) / len(self._weights))
        self._known: dict[Question, tuple[int, ...]] = {}

    def enodes(self, budget: Budget) -> list[ENode]:
        """The offers with their prices, in their order. Raises LimitReached, CostError."""
        nodes = list[ENode]()
        for offer in self._offers.offers:
            budget.check("extracting")
            cost = self.raising if offer.row is None else self.total(self._costs(offer.asked))
            nodes.append(ENode(offer.cls, offer.children, cost))
        return nodes

    def cost(self, r: Row) -> int:
        """The price of a row. Raises CostError for one that is no number."""
        return self.total(self.costs(r))

    def costs(self, r: Row) -> tuple[int, ...]:
        """The prices of a row, one for each workload."""
        return self._costs(self._offers.asked(r))

    def cost_of_copy(self, c: int) -> int:
        """The price of an Identity of a class."""
        return self.total(self.costs_of_copy(c))

    def costs_of_copy(self, c: int) -> tuple[int, ...]:
        """The same at each workload."""
        return self._costs(self._offers.asked_of_copy(c))

    def cost_of_node(self, node: ir.Node) -> int:
        """The price of a node of the graph as it stands there, whether an output needs it or not."""
        return self.total(self.costs_of_node(node))

    def costs_of_node(self, node: ir.Node) -> tuple[int, ...]:
        """The same at each workload, for the operator that is cheapest of those it may be taken for."""
        return min(map(self._costs, self._offers.nodes[node]), key=self.total)

    @property
    def nothing(self) -> tuple[int, ...]:
        return (0,) * len(self._offers.workloads)

    def total(self, costs: Sequence[int]) -> int:
        """Costs at each workload, as one."""
        return sum(
            cost * w if isinstance(w, int) else round(cost * float(w))
            for cost, w in zip(costs, self._weights, strict=True)
        )

    def _costs(self, question: Question) -> tuple[int, ...]:
        known = self._known.get(question)
        if known is None:
            known = tuple(map(self._price, question.works)) or self.nothing
            self._known[question] = known
        return known

    def _price(self, work: Work) -> int:
        try:
            cost = self._model.cost(work)
        except Exception as error:  # a caller's code may raise anything
            if isinstance(error, CostError) and work.op in str(error):
                raise
            raise CostError(f"the cost model fails on {work.op}: {type(error).__name__}: {error}") from error
        if not isinstance(cost, Integral) or not 0 <= cost <= _DEAREST:
            raise CostError(
                f"the cost model gives {work.op} the cost {shorten(repr(cost), 80)}; picoseconds are an int"
                f" from 0 to {_DEAREST:g}"
            )
        return int(cost)
