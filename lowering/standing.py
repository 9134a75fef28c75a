"""What a graph costs as it stands in the file: every node, whether an output needs it or not, as it would be printed.

A node that is read as one term which is printed as the same operator has the term's price, so that a graph that was
written costs what was predicted for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from ..egraph.ops import OPS
from .price import Pricer
from .spell import Spelling

#: Operators that are printed from terms of another name.
_TERMS: Mapping[str, str] = MappingProxyType({
    "Slice": "SliceC", "RMSNormalization": "RMSNorm", "SimplifiedLayerNormalization": "RMSNorm",
    "LayerNormalization": "LayerNorm",
})  # fmt: skip


def standing(graph: ir.Graph, pricer: Pricer) -> tuple[int, int]:
    """The cost of the graph's nodes, and how many there are."""
    return sum(_cost(node, pricer) for node in graph), graph.num_nodes()


def _cost(node: ir.Node, pricer: Pricer) -> int:
    readings = pricer.reading.spelled.get(node, [])
    costs = [pricer.cost_of_term(node, spelling) for spelling in readings if _one(node, spelling)]
    verbatim = not costs or any(isinstance(spelling, tuple) and spelling[0] == "Op" for spelling in readings)
    return min([*costs, *([pricer.cost_of_node(node)] if verbatim else [])])


def _one(node: ir.Node, spelling: Spelling) -> bool:
    """Whether the spelling is one term, printed as the operator that the node is."""
    if not isinstance(spelling, tuple) or spelling[0] == "Op":
        return False
    name = spelling[0]
    if name in OPS and (OPS[name].marker or node.op_type not in (name, *_names(name))):
        return False
    return not any(isinstance(v, tuple) and v and isinstance(v[0], str) and v[0] != "Ints" for v in spelling[1:])


def _names(term: str) -> Iterable[str]:
    return (op for op, name in _TERMS.items() if name == term)
