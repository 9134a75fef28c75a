"""Which node makes an output random, or leaves it without a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ..model.operators import title
from .compare import is_float, widened
from .feeds import Array, Feed
from .runtime import Runtime

_RUNS = 16  # few random numbers may be the same twice


class Trace:
    """What every node of a model's main graph computes on one feed, in two runs: where possible, such in which
    the outputs `differing` differ.
    """

    def __init__(self, runtime: Runtime, model: ir.Model, feed: Feed, differing: Sequence[str]) -> None:
        self._model = model
        self._runs: list[Mapping[str, Array]] = []
        try:
            told = model.clone()
            shown = {v.name for v in told.graph.outputs}
            for node in told.graph:
                for value in node.outputs:
                    if value.name and value.name not in shown and isinstance(value.type, ir.TensorType | None):
                        value.shape = None  # what is said of it need not be true
                        told.graph.outputs.append(value)
            runner = runtime.open(told, told, False)
            first = runner.run(feed.inputs)
            for _ in range(_RUNS if differing else 1):
                self._runs = [first, runner.run(feed.inputs)]
                if not any(_same(*(run[name] for run in self._runs)) for name in differing):
                    break
        except Exception:  # onnxruntime may show no value of some kind; then nothing is known
            self._runs = []

    def random(self, output: str) -> str:
        """The node two runs of which differ, though its operands do not."""
        return self._first(output, lambda name: not _same(*(run[name] for run in self._runs)))

    def blank(self, output: str) -> str:
        """The node that gives no number, though its operands hold some."""
        return self._first(output, lambda name: not _any_number(self._runs[0][name]))

    def _first(self, output: str, so: Callable[[str], bool]) -> str:
        """The node at which what is said of an output begins, or nothing."""
        value: ir.Value | None = next((v for v in self._model.graph.outputs if v.name == output), None)
        node: ir.Node | None = None
        while value is not None and self._runs and value.name in self._runs[0] and so(value.name or ""):
            node = value.producer()
            made = [v for v in (node.inputs if node is not None else ()) if v is not None and v.producer() is not None]
            value = next((v for v in made if v.name in self._runs[0] and so(v.name or "")), None)
        return "" if node is None else title(node)


def _same(one: Array, other: Array) -> bool:
    if one.shape != other.shape or not is_float(one):
        return np.array_equal(one, other)
    return np.array_equal(widened(one), widened(other), equal_nan=True)


def _any_number(array: Array) -> bool:
    return bool(np.isfinite(widened(array)).any()) if is_float(array) else array.size > 0
