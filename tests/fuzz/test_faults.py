"""A save that is stopped anywhere leaves the old model or the new one, whole, and nothing else (`faults.py`)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import faults
import pytest

from onnx_egraph import Result, saturate_and_extract

DRIVER = Path(faults.__file__)
SEED = int(os.environ.get("FAULTS_SEED", "0"))


def campaigns(*arguments: str) -> list[dict[str, Any]]:
    """What the driver says of each campaign, each of which must have stopped something."""
    command = [sys.executable, str(DRIVER), "--seed", str(SEED), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found
    assert all(c["stops"] > 0 for c in found), found
    return found


def failures(found: list[dict[str, Any]]) -> str:
    return "\n".join(line for c in found for line in c["failures"])


def test_killed_before_each_change_of_names() -> None:
    found = campaigns("--fault", "kill", "--naming")
    assert [c["kind"] for c in found] == [*faults.KINDS]
    assert sum(c["stops"] for c in found) >= 30
    assert failures(found) == ""


def test_stopped_otherwise_before_each_change_of_names() -> None:
    """By an interrupt, a full disk, and signals to the command line: nothing is left even before the next save."""
    stops = ("--fault", "interrupt", "--fault", "full", "--fault", "SIGTERM")
    assert failures(campaigns(*stops, "--kind", "report", "--naming")) == ""


def test_planted_faults_are_found() -> None:
    arguments = [a for plant in faults.PLANTS for a in ("--plant", plant)]
    found = campaigns(*arguments, "--fault", "kill", "--kind", "report", "--naming", "--first")
    assert [c["plant"] for c in found if c["failures"]] == [*faults.PLANTS]
    assert "--plant" in found[0]["failures"][0]  # what repeats it


@pytest.mark.deep
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_stopped_before_each_operation(fault: str) -> None:
    found = campaigns("--fault", fault)
    assert [c["kind"] for c in found] == [*faults.KINDS]
    assert sum(c["stops"] for c in found) >= (50 if fault == "full" else 200)
    assert failures(found) == ""


# ---- the command line


def signalled(folder: Path, number: signal.Signals, after: float, *more: str) -> tuple[int, str]:
    """The status of a run that gets a signal so long after its start of work, and its error text."""
    source, far = folder / "in.onnx", folder / "far"
    source.write_bytes(faults.model(SEED, folder).SerializeToString())
    far.mkdir()
    command = [sys.executable, "-m", "onnx_egraph", "optimize", *more, str(source), "-o", str(far / "o.onnx")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()  # reading
        time.sleep(after)
        process.send_signal(number)
        return process.wait(), line + process.stderr.read()


def left_well(folder: Path) -> bool:
    """Whether there is nothing, or a whole model and nothing else."""
    state = faults.contents(folder / "far")
    if "o.onnx" not in state:
        return state == {}
    faults.numbers(folder / "far" / "o.onnx")
    return {*state} == faults.own_files(Path("o.onnx"), state)


def test_a_signal_to_the_command_line(tmp_path: Path) -> None:
    status, text = signalled(tmp_path, signal.SIGTERM, 0.0)
    assert status == 143, text
    assert "Traceback" not in text
    assert left_well(tmp_path)


@pytest.mark.deep
def test_signals_at_random_times(tmp_path: Path) -> None:
    rng, ended = random.Random(SEED), 0
    for k in range(24):
        number = rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        after = rng.uniform(0, 0.6)
        folder = tmp_path / str(k)
        folder.mkdir()
        status, text = signalled(folder, number, after, "--no-verify")
        assert status in (0, 128 + number, -number), f"{number.name} after {after}: {status} {text}"
        assert left_well(folder), f"{number.name} after {after}: {sorted(faults.contents(folder / 'far'))}"
        ended += status == 128 + number
    assert ended


# ---- at the same time


def jobs(folder: Path, name: str, count: int, rules: int) -> list[tuple[Path, Path, int]]:
    out = folder / name
    out.mkdir()
    made = []
    for k in range(count):
        source = folder / f"source-{k}"
        if not source.exists():
            source.mkdir()
            given = faults.model(SEED * 100 + k, source)
            (source / "in.onnx").write_bytes(given.SerializeToString())
        made.append((source / "in.onnx", out / f"{k}.onnx", rules))
    return made


@pytest.mark.parametrize(("count", "rules", "workers"), [(6, 1, 2), pytest.param(16, 0, 4, marks=pytest.mark.deep)])
def test_many_models_at_a_time(tmp_path: Path, count: int, rules: int, workers: int) -> None:
    """In 8 threads and in some processes, into one folder: the bytes of one after the other."""
    alone = [faults.optimized(job) for job in jobs(tmp_path, "alone", count, rules)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(faults.optimized, jobs(tmp_path, "threads", count, rules))] == alone
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        assert [*pool.map(faults.optimized, jobs(tmp_path, "processes", count, rules))] == alone
    states = [faults.contents(tmp_path / name) for name in ("alone", "threads", "processes")]
    assert states[0] == states[1] == states[2]
    assert len(states[0]) == 3 * count


SAVES = """
import sys
from onnx_egraph import saturate_and_extract
source, target, count = sys.argv[1:]
result = saturate_and_extract(source, rules=[])
for _ in range(int(count)):
    result.save(target, report=target + ".json")
"""


@pytest.mark.parametrize(("count", "workers"), [(5, 1), pytest.param(50, 2, marks=pytest.mark.deep)])
def test_saves_to_one_place_at_the_same_time(tmp_path: Path, count: int, workers: int) -> None:
    """By two threads with one result, a third with another, and processes: one of them is there, whole."""
    out = tmp_path / "out"
    out.mkdir()
    sources = [job[0] for job in jobs(tmp_path, "unused", 3, 1)]
    results = [saturate_and_extract(source, rules=[]) for source in sources[:2]]
    expected = []
    for k, source in enumerate(sources):
        (tmp_path / f"alone-{k}").mkdir()
        saturate_and_extract(source, rules=[]).save(tmp_path / f"alone-{k}" / "o.onnx")
        expected.append(faults.numbers(tmp_path / f"alone-{k}" / "o.onnx"))
    failed: list[BaseException] = []

    def save(result: Result) -> None:
        try:
            for _ in range(count):
                result.save(out / "o.onnx", report=out / "o.onnx.json")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=[r]) for r in (results[0], results[0], results[1])]
    command = [sys.executable, "-c", SAVES, str(sources[2]), str(out / "o.onnx"), str(count)]
    processes = [subprocess.Popen(command) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in processes] == [0] * workers
    assert failed == []
    state = faults.contents(out)
    assert {*state} == {*faults.own_files(Path("o.onnx"), state), "o.onnx.json"}
    assert faults.numbers(out / "o.onnx") in expected
