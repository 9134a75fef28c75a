"""Names that are taken in a model, and new ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass(slots=True)
class Pool:
    """Names that are taken, and the last number given to a base."""

    taken: set[str] = field(default_factory=set)
    _tried: dict[str, int] = field(default_factory=dict)

    def fresh(self, base: str) -> str:
        """`base`, or the first of base_1, base_2 and so on that is not taken; now it is."""
        k = self._tried.get(base, 0)  # names are never given back: what was tried is taken still
        name = f"{base}_{k}" if k else base
        while name in self.taken:
            k += 1
            name = f"{base}_{k}"
        self._tried[base] = k
        self.taken.add(name)
        return name


@dataclass(slots=True)
class Names:
    """Every name taken in the model, graphs inside graphs included."""

    values: Pool = field(default_factory=Pool)
    nodes: Pool = field(default_factory=Pool)

    @classmethod
    def of(cls, model: ir.Model) -> Names:
        names = cls()
        for graph in model.graphs():
            names.values.taken.update(v.name for v in graph.inputs if v.name)
            names.values.taken.update(graph.initializers)
            for node in graph:
                names.values.taken.update(o.name for o in node.outputs if o.name)
                if node.name:
                    names.nodes.taken.add(node.name)
        return names
