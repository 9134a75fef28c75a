"""What a graph costs as it stands in the file: every node, whether an output needs it or not, as it would be printed.

A node that is read as one term which is printed as the same operator has the term's price, so that a graph that was
written costs what was predicted for it.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ..egraph.terms import OPS
from .price import Pricer
from .reader import nested


def standing(graph: ir.Graph, pricer: Pricer) -> tuple[int, int]:
    """The cost of the graph's nodes, and how many there are."""
    return sum(_cost(node, pricer) for node in graph), graph.num_nodes()


def _cost(node: ir.Node, pricer: Pricer) -> int:
    readings = pricer.reading.spelled.get(node, [])
    terms = [spelling for spelling in readings if isinstance(spelling, tuple)]
    costs = [pricer.cost_of_term(node, term) for term in terms if _one(node, term)]
    verbatim = not costs or any(term[0] == "Op" for term in terms)
    return min([*costs, *([pricer.cost_of_node(node)] if verbatim else [])])


def _one(node: ir.Node, spelling: tuple[Any, ...]) -> bool:
    """Whether the spelling is one term, printed as the operator that the node is."""
    name = spelling[0]
    forms = {(f.domain, f.kind) for f in OPS[name].forms} if name in OPS else None
    same = forms is None or (node.domain, node.op_type) in forms
    return name != "Op" and same and not nested(spelling)
