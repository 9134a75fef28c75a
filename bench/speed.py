"""How fast two models of the same function run in onnxruntime, as a ratio.

    python bench/speed.py A.onnx B.onnx [--points 1x1,1x16,1x128,4x64] [--rounds 15] [--processes 3]

CPU time of one thread, all of onnxruntime's own optimizations on for both. Each round runs A B B A, so a
machine that drifts costs both sides the same; a ratio above 1 means that B is faster. `A/A` is the ratio of
the two A runs of a round: what the machine alone makes of it. Points are BATCHxSEQ or BATCHxSEQ+PAST for
models with a key-value cache. Ends with status 1 where the outputs do not agree, or below --at-least.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import geometric_mean, median

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper

Feeds = dict[str, NDArray[np.generic]]

# A timed stretch repeats the model until it lasts about this long: well above the clock's noise.
_STRETCH = 0.01


@dataclass(frozen=True)
class Point:
    """Sizes of one measurement: batch, new tokens, cached tokens."""

    batch: int
    seq: int
    past: int = 0

    @staticmethod
    def parse(text: str) -> Point:
        batch, _, rest = text.partition("x")
        seq, _, past = rest.partition("+")
        return Point(int(batch), int(seq), int(past or 0))

    def __str__(self) -> str:
        return f"{self.batch}x{self.seq}" + (f"+{self.past}" if self.past else "")


@dataclass(frozen=True)
class Rounds:
    """Seconds per run at one point, one number per round, and how far the outputs are apart.

    `difference` is max |a - b| / max |a| over the outputs, `allowed` the square root of their dtype's eps.
    """

    first_a: list[float]
    second_a: list[float]
    b: list[float]
    difference: float
    allowed: float

    @property
    def ratios(self) -> list[float]:
        triples = zip(self.first_a, self.second_a, self.b, strict=True)
        return [(a1 + a2) / (2 * b) for a1, a2, b in triples]

    @property
    def noise(self) -> list[float]:
        return [a1 / a2 for a1, a2 in zip(self.first_a, self.second_a, strict=True)]


def vocabulary(graph: onnx.GraphProto) -> int:
    """The number of ids the model knows: rows of the tables that a graph input indexes directly.

    Raises ValueError where there is no such table.
    """
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    inputs = {value.name for value in graph.input}
    rows = [
        shapes[node.input[0]][0]
        for node in graph.node
        if node.op_type == "Gather" and node.input[1] in inputs and node.input[0] in shapes
    ]
    if not rows:
        raise ValueError("no Gather from a weight by a graph input; pass --vocab")
    return int(min(rows))


def feeds(graph: onnx.GraphProto, point: Point, vocab: int) -> Feeds:
    """Inputs of a language model, without padding and the same at every call: random ids, masks of ones.

    Raises ValueError for an input that is none of ids, mask, position_ids and past_*.
    """
    random = np.random.default_rng(0)
    weights = {tensor.name for tensor in graph.initializer}
    result: Feeds = {}
    for value in graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        rank = len(kind.shape.dim)
        if "mask" in value.name and rank == 2:
            result[value.name] = np.ones((point.batch, point.past + point.seq), dtype)
        elif "position" in value.name and rank == 2:
            ids = np.arange(point.past, point.past + point.seq, dtype=dtype)
            result[value.name] = np.tile(ids, (point.batch, 1))
        elif value.name.startswith("past") and rank == 4:
            symbols = iter((point.batch, point.past))
            shape = [dim.dim_value or next(symbols) for dim in kind.shape.dim]
            result[value.name] = random.standard_normal(shape).astype(dtype)
        elif rank == 2 and dtype.kind == "i":
            result[value.name] = random.integers(0, vocab, (point.batch, point.seq)).astype(dtype)
        else:
            raise ValueError(f"do not know how to feed {value.name!r} of rank {rank} and type {dtype}")
    return result


def open_session(path: str) -> ort.InferenceSession:
    """One thread, every optimization, the CPU."""
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    return ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def seconds(session: ort.InferenceSession, inputs: Feeds, repeat: int) -> float:
    """CPU seconds of the calling thread per run; with one thread onnxruntime computes in it."""
    start = time.thread_time()
    for _ in range(repeat):
        session.run(None, inputs)
    return (time.thread_time() - start) / repeat


def apart(a: Sequence[NDArray[np.generic]], b: Sequence[NDArray[np.generic]]) -> tuple[float, float]:
    """(max |a - b| / max |a|, what is allowed) over all outputs. Infinite where shapes or NaNs differ."""
    worst, allowed = 0.0, 0.0
    for left, right in zip(a, b, strict=True):
        wide_left, wide_right = left.astype(np.float64), right.astype(np.float64)
        if left.shape != right.shape or not np.array_equal(np.isfinite(wide_left), np.isfinite(wide_right)):
            return float("inf"), allowed
        finite = np.isfinite(wide_left)
        scale = np.abs(wide_left[finite]).max(initial=np.finfo(np.float64).tiny)
        worst = max(worst, float(np.abs(wide_left - wide_right)[finite].max(initial=0.0) / scale))
        if np.issubdtype(left.dtype, np.floating):
            allowed = max(allowed, float(np.finfo(str(left.dtype)).eps) ** 0.5)
    return worst, allowed


def compare(a: str, b: str, inputs: Mapping[Point, Feeds], rounds: int, a_first: bool) -> dict[Point, Rounds]:
    """All points in this process; both sessions live side by side."""
    opened = {path: open_session(path) for path in ((a, b) if a_first else (b, a))}
    one, other = opened[a], opened[b]
    result = {}
    for point, fed in inputs.items():
        difference, allowed = apart(one.run(None, fed), other.run(None, fed))
        repeat = max(1, round(_STRETCH / max(seconds(one, fed, 3), seconds(other, fed, 3))))
        first_a, second_a, times_b = [], [], []
        for _ in range(rounds):
            first_a.append(seconds(one, fed, repeat))
            times_b.append((seconds(other, fed, repeat) + seconds(other, fed, repeat)) / 2)
            second_a.append(seconds(one, fed, repeat))
        result[point] = Rounds(first_a, second_a, times_b, difference, allowed)
    return result


def _quartiles(values: Sequence[float]) -> str:
    low, high = np.percentile(values, [25, 75])
    return f"{low:.3f}..{high:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--points", default="1x1,1x16,1x128,4x64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--vocab", type=int, help="ids are below this; read from A if absent")
    parser.add_argument("--at-least", type=float, default=0.0, help="fail where a median ratio is below")
    options = parser.parse_args()

    points = [Point.parse(text) for text in options.points.split(",")]
    graph = onnx.load(options.a, load_external_data=False).graph
    vocab = options.vocab or vocabulary(graph)
    inputs = {point: feeds(graph, point, vocab) for point in points}
    runs: list[dict[Point, Rounds]] = []
    for turn in range(options.processes):
        # A process of its own each time: where its memory falls moves a ratio by some per cent.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            arguments = (options.a, options.b, inputs, options.rounds, turn % 2 == 0)
            runs.append(pool.submit(compare, *arguments).result())

    print(f"A = {options.a}, B = {options.b}; {options.processes} processes of {options.rounds} rounds")
    print(f"{'point':>10} {'A ms':>9} {'B ms':>9} {'A/B':>7} {'quartiles':>14} {'A/A':>14} {'apart':>8}")
    status, medians = 0, []
    for point in points:
        taken = [run[point] for run in runs]
        ratios = [ratio for r in taken for ratio in r.ratios]
        noise = [ratio for r in taken for ratio in r.noise]
        time_a = median(t for r in taken for t in [*r.first_a, *r.second_a])
        time_b = median(t for r in taken for t in r.b)
        difference = max(r.difference for r in taken)
        medians.append(median(ratios))
        bad = difference > taken[0].allowed
        print(
            f"{point!s:>10} {time_a * 1e3:9.3f} {time_b * 1e3:9.3f} {medians[-1]:7.3f}"
            f" {_quartiles(ratios):>14} {_quartiles(noise):>14} {difference:8.1e}{' DIFFER' if bad else ''}"
        )
        if bad or medians[-1] < options.at_least:
            status = 1
    print(f"geometric mean of A/B: {geometric_mean(medians):.3f}")
    return status


if __name__ == "__main__":
    sys.exit(main())
