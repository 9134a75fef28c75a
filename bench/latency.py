"""How fast a model runs as it is, as we leave it, tuned, and as other optimizers leave it, in one run.

    python bench/latency.py MODEL [--peers ort:qwen3,onnxscript,onnxslim] [--hand OTHER.onnx]
                            [--points decode=1x1+128,decode2=1x1+2048,prefill=1x512] [--seconds 120]

CPU time of one thread, all of onnxruntime's own optimizations on for all; all models run in turn, in sessions made in
several orders, and the ratio to the input counts, round by round: the median, and the interval in which it lies with
95 %. `again` is the input once more: what the machine makes of it. A point is BATCHxSEQ or BATCHxSEQ+PAST. Ends with
status 1 where ours or tuned is below --at-least of the input or of the best peer at some point.

    ort:TYPE     onnxruntime.transformers.optimizer.optimize_model(model_type=TYPE, opt_level=0)
    onnxscript   onnxscript.rewriter.ort_fusions.optimize_for_ort
    onnxslim     onnxslim.slim
    --hand       a file that computes the same with the same inputs, such as one made by hand

Peers that live in another environment: --peer-python PATH.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import geometric_mean

import onnx
from versus import heads_and_hidden

from onnx_egraph import Limits, Workload, saturate_and_extract, tune
from onnx_egraph.egraph.budget import Budget
from onnx_egraph.lowering.measure.race import Standing, Timed, feeds_at, race
from onnx_egraph.lowering.verify.feeds import read_model
from onnx_egraph.lowering.verify.session import Session, source_of

_PEERS = {
    "ort": """
from onnxruntime.transformers.optimizer import optimize_model
optimize_model(source, model_type=kind, num_heads=heads, hidden_size=hidden, opt_level=0).save_model_to_file(
    out, use_external_data_format=True)
""",
    "onnxscript": """
import onnx_ir as ir
from onnxscript.rewriter.ort_fusions import optimize_for_ort
made = optimize_for_ort(ir.load(source))
ir.save(made[0] if isinstance(made, tuple) else made, out, external_data="weights.bin")
""",
    "onnxslim": """
import onnx, onnxslim
onnx.save(onnxslim.slim(source), out, save_as_external_data=True, location="weights.bin")
""",
}


def peer(name: str, model: Path, folder: Path, python: str) -> Path:
    """The file that another optimizer makes of a model. Raises RuntimeError with the last line it printed."""
    task, _, kind = name.partition(":")
    heads, hidden = heads_and_hidden(onnx.load(model, load_external_data=False).graph)
    out = folder / re.sub(r"\W", "_", name) / "model.onnx"
    out.parent.mkdir()
    given = f"source, out, kind, heads, hidden = {str(model)!r}, {str(out)!r}, {kind!r}, {heads}, {hidden}\n"
    done = subprocess.run([python, "-c", given + _PEERS[task]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return out


def point(text: str) -> Workload:
    name, _, sizes = text.partition("=")
    batch, _, rest = sizes.partition("x")
    new, _, past = rest.partition("+")
    return Workload(name, batch=int(batch), new=int(new), past=int(past or 1))


def session(path: Path) -> Session:
    return Session(source_of(str(path), read_model(str(path))), True, threads=1)


def below(standings: list[Standing], ours: str, others: list[str], count: int, bound: float) -> list[str]:
    """Where one of ours is slower than the bound allows."""
    speeds = {s.name: [s.speed_at(k).value for k in range(count)] for s in standings}
    return [
        f"{ours} is {speeds[ours][k] / speeds[other][k]:.3f} of {other} at point {k + 1}"
        for other in others for k in range(count) if speeds[ours][k] < bound * speeds[other][k]
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peers", default="", help="comma-separated")
    parser.add_argument("--hand", type=Path)
    parser.add_argument("--points", default="decode=1x1+128,decode2=1x1+2048,prefill=1x128")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--tune", type=float, default=60.0, help="seconds; 0 leaves tuning out")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--at-least", type=float, default=0.0)
    options = parser.parse_args()

    points = [point(text) for text in options.points.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        folder, files = Path(scratch), {"input": options.model, "again": options.model}
        (folder / "ours").mkdir()
        saturate_and_extract(options.model, dims=points).save(folder / "ours" / "model.onnx")
        files["ours"] = folder / "ours" / "model.onnx"
        if options.tune:
            (folder / "tuned").mkdir()
            tuned = tune(options.model, dims=points, seconds=options.tune)
            tuned.result.save(folder / "tuned" / "model.onnx")
            files["tuned"] = folder / "tuned" / "model.onnx"
            print(f"tuned: {tuned.winner}")
        for name in filter(None, options.peers.split(",")):
            try:
                files[name] = peer(name, options.model.absolute(), folder, options.peer_python)
            except RuntimeError as error:
                print(f"{name}: {error}")
        if options.hand:
            files["hand"] = options.hand
        entries: dict[str, partial[Timed]] = {name: partial(session, path) for name, path in files.items()}
        budget = Budget(Limits(seconds=options.seconds))
        standings = race(
            entries, feeds_at(str(options.model), points), [1.0] * len(points), budget, lambda s: None, 0.0
        )

    print(f"{'':12}" + "".join(f"{p.name:>28}" for p in points) + f"{'mean':>8}")
    for standing in standings:
        speeds = [standing.speed_at(k) for k in range(len(points))]
        cells = "".join(
            f"{1e3 * standing.seconds_at(k):9.2f} ms {s.value:5.3f} {s.low:5.3f}..{s.high:5.3f}"[:28].rjust(28)
            for k, s in enumerate(speeds)
        )
        print(f"{standing.name:12}{cells}{geometric_mean([s.value for s in speeds]):8.3f}")
    others = ["input", *(name for name in files if name not in ("input", "again", "ours", "tuned"))]
    faults = [f for ours in ("ours", "tuned") if ours in files
              for f in below(standings, ours, others, len(points), options.at_least)]  # fmt: skip
    print(*faults, sep="\n", end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
