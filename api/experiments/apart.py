"""A task in a Python process of its own: nothing of other tasks, of Dask or of an earlier model is in its times, and
if it dies, the others go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from ..egraph.errors import EGraphError, one_line
from .experiment import Experiment
from .finding import Finding
from .task import Task

_START = "from onnx_egraph.experiments.apart import main; main()"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rows of a task, or why there are none."""

    rows: tuple[Finding, ...] = ()
    failure: str = ""


@dataclass(slots=True)
class Crew:
    """Runs tasks, each in a process, and ends those that are under way when told to."""

    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _ended: bool = False

    def run(self, task: Task, tell: Callable[[str], None]) -> Outcome:
        """What came of a task. `tell` is called with what is done meanwhile."""
        given = json.dumps({"experiment": task.experiment.plain(), "model": task.model})
        outcome = None
        # -P: no module of the folder it is started in stands for one of the same name
        command = [sys.executable, "-P", "-c", _START]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, encoding="utf-8"
            ) as process:
                self._running.append(process)
                if self._ended:
                    process.kill()
                assert process.stdin is not None
                assert process.stdout is not None
                with contextlib.suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(given)
                for line in process.stdout:
                    match json.loads(line):
                        case {"stage": str(stage)}:
                            tell(stage)
                        case {"failure": str(failure)}:
                            outcome = Outcome(failure=failure)
                        case {"rows": list(rows)}:
                            outcome = Outcome(tuple(map(Finding.of, rows)))
            self._running.remove(process)
            if outcome is None:
                said.seek(0)
                text = said.read()
                sys.stderr.write(text)  # a bug is shown with its traceback
                last = (text.strip().splitlines() or ["it said nothing"])[-1]
                outcome = Outcome(failure=one_line(f"its process ended with status {process.returncode}: {last}"))
        return outcome

    def end(self) -> None:
        """Kill what runs; what begins later ends at once."""
        self._ended = True
        for process in [*self._running]:
            process.kill()


def apart(task: Task) -> Outcome:
    """What came of a task, on whichever machine this is called."""
    return Crew().run(task, lambda stage: None)


def main() -> None:
    """In the process: a task as JSON from stdin; to stdout lines of JSON, what is being done and last what came of it.

    What else is printed, such as by a cost model, goes to stderr.
    """
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    data = json.loads(sys.stdin.buffer.read())
    task = Task(Experiment.of(data["experiment"]), data["model"])
    try:
        rows = task.run(lambda stage: _say(out, {"stage": stage}))
        _say(out, {"rows": [row.plain() for row in rows]})
    except EGraphError as error:
        _say(out, {"failure": str(error)})


def _say(out: TextIO, message: Mapping[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()
