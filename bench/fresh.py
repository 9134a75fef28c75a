"""Measurements in processes of their own: the parent's side.

A measurement must see neither the caches nor the heap of an earlier one, so each runs `task.py` in a new
interpreter; imports are done there before its clocks start.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

_TASK = Path(__file__).with_name("task.py")


class TaskFailed(Exception):
    """The process of a measurement ended with an error; carries its last line of output."""


@dataclass(frozen=True)
class Sample:
    """One run. Seconds are CPU time of the whole process with its threads, memory is in MiB.

    `nodes_after`, `times` (seconds per stage) and `egraph` (sizes) are empty where a task has none.
    """

    cpu: float
    wall: float
    rss_imports: float
    rss_peak: float
    nodes_before: int = 0
    nodes_after: int = 0
    times: dict[str, float] = field(default_factory=dict)
    egraph: dict[str, int] = field(default_factory=dict)


def measure(task: str, model: Path, *options: str, python: str = sys.executable) -> Sample:
    """Run one task of `task.py` on `model` in a fresh process. Raises TaskFailed if it fails."""
    # A file, not a pipe for the result: some of the measured libraries print.
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "sample.json")
        command = [python, str(_TASK), task, str(model), str(answer), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            raise TaskFailed(lines[-1])
        return Sample(**json.loads(answer.read_text()))


def median_of(samples: list[Sample], attribute: str) -> float:
    """The median of one number of the samples."""
    return median(float(getattr(sample, attribute)) for sample in samples)


def spread_of(samples: list[Sample], attribute: str) -> float:
    """(largest - smallest) / median of one number of the samples: how noisy the machine was."""
    values = [float(getattr(sample, attribute)) for sample in samples]
    return (max(values) - min(values)) / median(values)
