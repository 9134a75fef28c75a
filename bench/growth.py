"""How the optimizer's cost grows with depth.

    python bench/growth.py [MODEL] [--layers 2,7,14,28,56] [--repeat 3] [--limit 1.15] [--json FILE]

Optimizes the same architecture at several depths (see `deepen.py`), each run in a fresh process, the
depths interleaved. Prints medians and the slope of log(CPU seconds) over log(layers); ends with status 1
where a slope is above the limit. Node counts are checked to be equal in every repeat.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from deepen import deepen
from fresh import Sample, measure, median_of, spread_of

_EXAMPLE = Path(__file__).parents[1] / "examples" / "qwen3_2layers.onnx"
_LARGE = 7  # below this depth fixed costs hide the slope


def exponent(depths: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log(seconds) over log(depths), by least squares; needs two depths."""
    return float(np.polyfit(np.log(depths), np.log(seconds), 1)[0])


def run(model: Path, depths: Sequence[int], repeat: int, python: str) -> dict[int, list[Sample]]:
    """`repeat` samples per depth, interleaved. Raises TaskFailed, or ValueError for unequal node counts."""
    samples: dict[int, list[Sample]] = {depth: [] for depth in depths}
    with tempfile.TemporaryDirectory() as folder:
        files = {depth: Path(folder, f"{depth}.onnx") for depth in depths}
        for depth, file in files.items():
            onnx.save(deepen(model, depth), file)
        for turn in range(repeat):
            # Every other round backwards, so that a slow drift of the machine favors no depth.
            for depth in depths if turn % 2 == 0 else reversed(depths):
                sample = measure("ours", files[depth], python=python)
                samples[depth].append(sample)
                print(f"round {turn + 1}: {depth} layers, {sample.cpu:.2f} s", file=sys.stderr)
    for depth, taken in samples.items():
        if len({sample.nodes_after for sample in taken}) != 1:
            counts = [sample.nodes_after for sample in taken]
            raise ValueError(f"{depth} layers: node counts {counts} differ between runs")
    return samples


def stage_medians(samples: dict[int, list[Sample]]) -> dict[str, list[float]]:
    """CPU seconds per stage, in order of first use; one median per depth. 0 where a stage did not run."""
    stages = dict.fromkeys(stage for taken in samples.values() for s in taken for stage in s.times)
    return {stage: [median(s.times.get(stage, 0.0) for s in taken) for taken in samples.values()] for stage in stages}


def table(samples: dict[int, list[Sample]]) -> str:
    """One line per depth: sizes, memory, total and the seconds of each stage."""
    stages = stage_medians(samples)
    header = ["layers", "nodes", "after", "tuples", "MiB", "+MiB", "cpu s", "spread"]
    rows = [header + list(stages)]
    for i, (depth, taken) in enumerate(samples.items()):
        first = taken[0]
        grown = median(s.rss_peak - s.rss_imports for s in taken)
        numbers = [depth, first.nodes_before, first.nodes_after, first.egraph.get("tuples", 0)]
        memory = [f"{median_of(taken, 'rss_peak'):.0f}", f"{grown:.0f}"]
        total = [f"{median_of(taken, 'cpu'):.3f}", f"{spread_of(taken, 'cpu'):.0%}"]
        rows.append([*map(str, numbers), *memory, *total, *(f"{stages[stage][i]:.3f}" for stage in stages)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(line) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=_EXAMPLE)
    parser.add_argument("--layers", default="2,7,14,28,56")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1.15)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    depths = sorted({int(layers) for layers in options.layers.split(",")})
    if len(depths) < 2:
        parser.error("a slope needs at least two depths")

    samples = run(options.model, depths, options.repeat, options.python)
    totals = [median_of(taken, "cpu") for taken in samples.values()]
    large = [i for i, depth in enumerate(depths) if depth >= _LARGE]
    slopes = {f"{depths[0]}..{depths[-1]}": exponent(depths, totals)}
    if len(large) > 1:
        span = f"{depths[large[0]]}..{depths[-1]}"
        slopes[span] = exponent([depths[i] for i in large], [totals[i] for i in large])
    print(table(samples))
    for span, slope in slopes.items():
        print(f"exponent over layers {span}: {slope:.3f}")
    steps = [
        f"{a}->{b} {exponent([a, b], [cost_a, cost_b]):.2f}"
        for (a, cost_a), (b, cost_b) in pairwise(zip(depths, totals, strict=True))
    ]
    print("between depths: " + ", ".join(steps))
    for stage, seconds in stage_medians(samples).items():
        if len(large) > 1 and all(seconds[i] > 0 for i in large):
            slope = exponent([depths[i] for i in large], [seconds[i] for i in large])
            print(f"  {stage}: {slope:.2f}, {seconds[-1] / totals[-1]:.0%} of {depths[-1]} layers")
    if options.json:
        plain = {depth: [dataclasses.asdict(s) for s in taken] for depth, taken in samples.items()}
        options.json.write_text(json.dumps({"exponents": slopes, "samples": plain}, indent=1))
    failed = [span for span, slope in slopes.items() if slope > options.limit]
    if failed:
        print(f"FAILED: exponent above {options.limit} over layers {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
