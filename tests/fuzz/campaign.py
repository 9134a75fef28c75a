"""Run a fuzzer over many seeds, count, and print what failed: in this process, or from the command line in a child,
so that a crash of the process, or a hang, is put down to its seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

LIMIT = 120  # seconds for one seed
BATCH = 400  # seeds for one child: onnxruntime keeps memory


@dataclass
class Outcome:
    """What became of one seed. `fault` is its kind, "" if there is none."""

    seed: int
    fault: str = ""
    text: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    kinds: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Campaign:
    name: str
    run: Callable[[int, float], Outcome]  # seed, seconds to shrink


@dataclass
class Total:
    """What became of all seeds."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Outcome] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.counts.update(outcome.counts)
        self.kinds.update(outcome.kinds)
        if outcome.fault:
            self.faults.append(outcome)

    def text(self) -> str:
        lines = [f"{n:>9,}  {name}" for name, n in sorted(self.counts.items())]
        kinds = Counter(o.fault for o in self.faults)
        lines += [f"{n:>9,}  FAULTS: {kind}" for kind, n in kinds.most_common()]
        return "\n".join([f"{self.seeds:>9,}  seeds", *lines])


def here(campaign: Campaign, seeds: Iterable[int], shrink: float = 0) -> Total:
    """All seeds in this process."""
    total = Total()
    for seed in seeds:
        total.add(campaign.run(seed, shrink))
    return total


def again(campaign: Campaign, seed: int) -> str:
    return f"python tests/fuzz/{campaign.name}.py --count 1 --seed {seed}"


def main(campaign: Campaign) -> None:
    """The command line. Status 1 if anything failed."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to make a failing program small")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.count)
    if given.child:
        _child(campaign, seeds, given.shrink)
        return
    begin, total = time.monotonic(), Total()
    for outcome in children(campaign, seeds, given.shrink):
        total.add(outcome)
        if outcome.fault:
            print(f"seed {outcome.seed}: {outcome.text}\nagain: {again(campaign, outcome.seed)}\n", flush=True)
    print(f"{total.text()}\n{time.monotonic() - begin:>9,.0f}  seconds")
    sys.exit(bool(total.faults))


def _child(campaign: Campaign, seeds: Iterable[int], shrink: float) -> None:
    """Each outcome is a line on stdout."""
    for seed in seeds:
        try:
            outcome = campaign.run(seed, shrink)
        except Exception:
            outcome = Outcome(seed, "the fuzzer itself", traceback.format_exc())
        print("\x1e" + json.dumps(vars(outcome)), flush=True)


def children(campaign: Campaign, seeds: range, shrink: float = 0, limit: float = LIMIT) -> Iterable[Outcome]:
    """The outcomes of all seeds, run in child processes; one that dies or hangs is a fault of its seed."""
    first = seeds.start
    while first < seeds.stop:
        last = min(first + BATCH, seeds.stop)
        for outcome in _batch(campaign, first, last, shrink, limit):
            yield outcome
            first = outcome.seed + 1


def _batch(campaign: Campaign, first: int, last: int, shrink: float, limit: float) -> Iterable[Outcome]:
    script = Path(__file__).with_name(f"{campaign.name}.py")
    options = ["--child", f"--seed={first}", f"--count={last - first}", f"--shrink={shrink}"]
    child = subprocess.Popen(
        [sys.executable, str(script), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    lines: Queue[str] = Queue()
    errors: list[str] = []

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put("")

    def complain() -> None:
        assert child.stderr is not None
        for line in child.stderr:
            errors[:] = [*errors[-20:], line]

    readers = [Thread(target=f, daemon=True) for f in (read, complain)]
    for reader in readers:
        reader.start()
    seed = first
    try:
        while seed < last:
            try:
                line = lines.get(timeout=limit + shrink)
            except Empty:
                yield Outcome(seed, "hang", f"hang: no answer after {limit + shrink:.0f} seconds")
                return
            if not line:
                status = child.wait()
                yield Outcome(seed, "crash", f"crash: the process ended with {status}\n{''.join(errors)}")
                return
            if not line.startswith("\x1e"):
                continue
            found = json.loads(line[1:])
            seed = found["seed"] + 1
            yield Outcome(**{**found, "counts": Counter(found["counts"])})
    finally:
        child.kill()
        child.wait()
        for reader in readers:
            reader.join(5)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
