"""Random typed graphs: optimized, they must be the same model. Run `python tests/fuzz/graphs.py --count 1000 --seed 1`.

Seed k draws model k and the arguments it is optimized with; the same seed gives the same model.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from campaign import Campaign, Outcome, main
from judge import Redraw, judge, settings
from models import Drawn, draw_model
from reduce import reduce, told

ATTEMPTS = 4  # at a model that onnxruntime takes


def run(seed: int, shrink: float = 60) -> Outcome:
    """Judge the model of a seed; `shrink` are the seconds to make a failing one small."""
    outcome = Outcome(seed)
    for attempt in range(ATTEMPTS):
        drawn = draw_model(seed, attempt)
        arguments = settings(seed, drawn.model)
        try:
            judged = judge(drawn, arguments, path=seed % 4 == 0)
        except Redraw as error:
            outcome.counts["redrawn"] += 1
            outcome.notes.append(f"redrawn: {str(error)[-160:]}")
            continue
        outcome.counts.update(judged.counts)
        outcome.counts["facts"] += judged.facts
        outcome.counts.update({f"fused {op}": n for op, n in judged.fused.items()})
        outcome.counts["graphs with a fusion"] += bool(judged.fused)
        outcome.kinds = sorted(f"{domain}::{op}" if domain else op for domain, op in drawn.kinds)
        if judged.fault is not None:
            outcome.fault = judged.fault.kind
            outcome.text = f"{judged.fault}\narguments: {arguments}"
            if shrink:
                small, fault = reduce(
                    drawn, judged.fault, lambda d: judge(d, arguments, facts=judged.fault.kind == "facts").fault, shrink
                )
                outcome.text += f"\nsmaller: {told(small, fault)}"
        return outcome
    outcome.counts["not drawn"] += 1
    return outcome


def drawn(seed: int) -> Drawn:
    """The model of a seed, to look at."""
    return draw_model(seed)


FUZZER = Campaign("graphs", run)

if __name__ == "__main__":
    main(FUZZER)
