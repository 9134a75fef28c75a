"""Saves that are stopped at one operation on the disk after the other, and what must hold then.

    python tests/fuzz/faults.py --fault kill --kind copied --seed 3 --at 17

forks a child that saves a result over an earlier one and is stopped right before its 17th operation; without `--at`, at
each in turn. The outcome is a line of JSON: how many stops there were, and for each failure the line that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper as h
from onnx import numpy_helper as nh

import onnx_egraph
from onnx_egraph import Result, cli, saturate_and_extract
from onnx_egraph.egraph.errors import OutputError
from onnx_egraph.lowering.files import save as saving
from onnx_egraph.lowering.files import staging
from onnx_egraph.rules import ALL

KINDS = ("inline", "large", "copied", "report", "gone")
FAULTS = ("kill", "interrupt", "full", "SIGTERM", "SIGINT")
PLANTS = ("swapped", "reused", "unswept", "eager", "hasty")
SIZE = 16
#: What a save does to the disk, and may be stopped before. Reads are no such thing.
OPERATIONS = frozenset(
    "open write writelines close __exit__ mkdir rmdir unlink remove rename replace link symlink truncate fsync "
    "sendfile copy_file_range flock chmod utime".split()
)
#: Of those, what changes names: between two of them, a model could be without its weights.
NAMING = frozenset("mkdir rmdir unlink remove rename replace link symlink".split())
#: What a full disk refuses.
GROWING = frozenset("write writelines mkdir rename replace link fsync sendfile copy_file_range".split())


def is_operation(function: Any) -> bool:
    """Whether a C function is about files and changes something."""
    if function.__name__ not in OPERATIONS:
        return False
    return function.__module__ in ("posix", "fcntl", "_io", "io") or isinstance(function.__self__, io.IOBase)


@dataclass
class Stopper:
    """Calls `stop` right before operation number `at`; `count` are those before."""

    at: int
    stop: Callable[[], None]
    only: frozenset[str] = OPERATIONS
    count: int = 0

    def __call__(self, frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and is_operation(function) and function.__name__ in self.only:
            self.count += 1
            if self.count == self.at:
                self.stop()


def model(seed: int, weights: Path | None, name: str = "weights.bin", size: int = SIZE) -> onnx.ModelProto:
    """y = relu(x * a) * b + c, with weights of its own; those of a and b in `weights`, if that is given."""
    rng = np.random.default_rng(seed)
    tensors = {k: rng.standard_normal((size, size)).astype(np.float32) for k in "ab"}
    stored = [nh.from_array(v, k) for k, v in tensors.items()]
    if weights is not None:
        for k, tensor in enumerate(stored):
            place = weights / (name if k == 0 else f"{name}.more")
            place.write_bytes(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=place.name)
    stored.append(nh.from_array(rng.standard_normal(size).astype(np.float32), "c"))
    nodes = [h.make_node(*a) for a in (
        ("MatMul", ["x", "a"], ["p"]), ("Relu", ["p"], ["q"]), ("MatMul", ["q", "b"], ["r"]),
        ("Add", ["r", "c"], ["s"]), ("Identity", ["s"], ["y"]),  # what is not improved is saved as it came
    )]  # fmt: skip
    ends = [h.make_tensor_value_info(k, onnx.TensorProto.FLOAT, ["n", size]) for k in "xy"]
    graph = h.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def numbers(path: Path) -> bytes:
    """What the model there computes for one input."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # no threads, which a fork would lose
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = np.linspace(-1, 1, 3 * SIZE, dtype=np.float32).reshape(3, SIZE)
    return np.asarray(session.run(None, {"x": x})[0]).tobytes()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, and every folder with nothing inside."""
    found = {str(p.relative_to(folder)): b"" for p in folder.rglob("*") if p.is_dir()}
    return found | {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def optimized(job: tuple[Path, Path, int]) -> bytes:
    """Optimize and save a model with the first few rules, or with all for 0; in a process of its own, perhaps."""
    source, target, rules = job
    saturate_and_extract(source, rules=ALL[:rules] if rules else ALL).save(target)
    return target.read_bytes()


def own_files(path: Path, state: dict[str, bytes]) -> set[str]:
    """The model's and those of its weights."""
    proto = onnx.ModelProto.FromString(state[path.name])
    return {path.name, *(e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location")}


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The save with a fault of the kind it is there to avoid."""
    publish = saving.publish
    patches: list[tuple[Any, str, Any]] = []
    if name == "swapped":  # the model before its weights

        def swapped(weights: Any, part: Path, target: Path, texts: Any) -> None:
            os.replace(part, target)
            for a, b in {**weights, **texts}.items():
                os.replace(a, b)

        patches = [(saving, "publish", swapped)]
    elif name == "reused":  # weights under the name that the old model knows

        def named(parts: list[Path], target: Path, *_: Any) -> dict[Path, str]:
            return {part: saving._side_name(target, k) for k, part in enumerate(parts)}

        patches = [(saving, "_existing", lambda target: []), (saving, "_named", named)]
    elif name == "unswept":  # what a dead process left stays
        patches = [(staging, "_sweep", lambda place: None)]
    elif name == "eager":  # the report before the model

        def eager(weights: Any, part: Path, target: Path, texts: Any) -> None:
            for a, b in texts.items():
                os.replace(a, b)
            publish(weights, part, target, {})

        patches = [(saving, "publish", eager)]
    elif name == "hasty":  # the old weights go before the new model is there

        def hasty(weights: Any, part: Path, target: Path, texts: Any) -> None:
            for file in target.parent.glob(f"{target.name}*.data"):
                file.unlink()
            publish(weights, part, target, texts)

        patches = [(saving, "publish", hasty)]
    before = [(module, key, getattr(module, key)) for module, key, _ in patches]
    try:
        for module, key, value in patches:
            setattr(module, key, value)
        yield
    finally:
        for module, key, value in before:
            setattr(module, key, value)


@dataclass
class Campaign:
    """One kind of save over an earlier one, in a folder with files of others."""

    fault: str
    kind: str
    seed: int
    plant: str | None
    home: Path
    only: frozenset[str] = OPERATIONS
    stops: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.template, self.work = self.home / "template", self.home / "work"
        self.template.mkdir()
        # files of others, some of which are named much as ours are
        bystander = model(self.seed + 9, self.template, "o.onnx.7.data")
        (self.template / "bystander.onnx").write_bytes(bystander.SerializeToString())
        (self.template / "o.onnx.data.txt").write_bytes(b"mine")
        (self.template / ".onnx-egraph-notes").mkdir()
        (self.template / ".onnx-egraph-notes" / "mine").write_bytes(b"mine")
        self.foreign = contents(self.template)
        self.old, self.new = self.result(0, self.kind), self.result(1, "inline" if self.kind == "gone" else self.kind)
        self.save(self.old, self.template)
        shutil.copytree(self.template, self.work)
        self.save(self.new, self.work)
        self.states = {"old": contents(self.template), "new": contents(self.work)}
        self.numbers = {"old": numbers(self.template / "o.onnx"), "new": numbers(self.work / "o.onnx")}
        assert self.numbers["old"] != self.numbers["new"]
        assert {*self.states["new"]} - {*self.foreign} == self.mine(self.states["new"]), {*self.states["new"]}

    def result(self, number: int, kind: str) -> Result:
        folder = self.home / f"source-{number}"
        folder.mkdir()
        far = folder if kind in ("copied", "report", "gone") else None
        path = folder / "in.onnx"
        path.write_bytes(model(100 * self.seed + number, far).SerializeToString())
        return saturate_and_extract(path, rules=[])

    def mine(self, state: dict[str, bytes]) -> set[str]:
        return own_files(Path("o.onnx"), state) | ({"r.json"} if self.kind == "report" else set())

    def save(self, result: Result, folder: Path, name: str = "o.onnx") -> None:
        report = folder / f"{name.removesuffix('o.onnx')}r.json" if self.kind == "report" else None
        if report is not None:
            result.report.times = {"read": float(id(result) % 1000)}
        limit = saving._PROTOBUF_LIMIT
        saving._PROTOBUF_LIMIT = 1000 if self.kind == "large" else limit
        try:
            result.save(folder / name, report=report)
        finally:
            saving._PROTOBUF_LIMIT = limit

    # ---- one stop

    def stop(self) -> None:
        match self.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                raise KeyboardInterrupt
            case "full":
                raise OSError(errno.ENOSPC, "No space left on device")
            case name:
                os.kill(os.getpid(), signal.Signals[name])

    def child(self, at: int) -> int:
        """The status to exit with: 0 saved, 1 an OutputError, 2 interrupted, 128 + n by the command line."""
        stopper = Stopper(at, self.stop, GROWING if self.fault == "full" else self.only)
        status = 0
        sys.setprofile(stopper)
        try:
            if self.fault.startswith("SIG"):
                self.command_line()
            else:
                self.save(self.new, self.work)
        except OutputError as error:
            status = 1 if len(str(error).splitlines()) == 1 else 97
        except KeyboardInterrupt:
            status = 2
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 99
        finally:
            sys.setprofile(None)
        if stopper.count < at:
            return 77  # not that many operations
        if status:
            (self.home / "again").mkdir()
            self.save(self.new, self.home / "again")
        return status

    def command_line(self) -> None:
        onnx_egraph.saturate_and_extract = lambda *args, **options: self.new  # type: ignore[assignment]
        limit = saving._PROTOBUF_LIMIT
        saving._PROTOBUF_LIMIT = 1000 if self.kind == "large" else limit
        source = self.home / "source-1" / "in.onnx"
        sys.argv = ["onnx-egraph", "optimize", "-q", str(source), "-o", str(self.work / "o.onnx")]
        if self.kind == "report":
            sys.argv += ["--report", str(self.work / "r.json")]
        cli.main()

    def once(self, at: int) -> bool:
        """Stop before operation `at` and look at what is there; False if there are fewer."""
        for folder in (self.work, self.home / "again"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template, self.work)
        child = os.fork()
        if not child:
            status = 98
            try:
                status = self.child(at)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 77:
            return False
        self.stops += 1
        try:
            self.check(status, random.Random(f"{self.seed} {at}"))
        except Exception as error:
            again = f"--fault {self.fault} --kind {self.kind} --seed {self.seed} --at {at}"
            if self.only == NAMING:
                again += " --naming"
            if self.plant:
                again += f" --plant {self.plant}"
            self.failures.append(f"python tests/fuzz/faults.py {again}: {type(error).__name__}: {error}")
        return True

    def check(self, status: int, rng: random.Random) -> None:
        found = contents(self.work)
        assert {k: v for k, v in found.items() if k in self.foreign} == self.foreign, "a foreign file was touched"
        side = self.whole(found)
        if self.fault == "kill":
            assert status == -signal.SIGKILL, status
        else:
            signals = {"SIGTERM": 143, "SIGINT": 130}
            expected = {"interrupt": (0, 2), "full": (0, 1)}.get(self.fault, (0, signals.get(self.fault)))
            assert status in expected, f"status {status}"
            assert found == self.states[side], f"not as it was: {self.difference(found, self.states[side])}"
            assert status != 1 or side == "old", "an error, and yet another model"
            if status:
                assert numbers(self.home / "again" / "o.onnx") == self.numbers["new"], "the result is of no use"
            return
        if rng.random() < 0.5:  # the next save goes to another name
            self.save(self.new, self.work, "p-o.onnx")
            found = contents(self.work)
            gone = own_files(Path("p-o.onnx"), found) | ({"p-r.json"} if self.kind == "report" else set())
            left = {k: v for k, v in found.items() if k not in gone}
            assert left == self.states[side], f"after the next: {self.difference(left, self.states[side])}"
            assert numbers(self.work / "p-o.onnx") == self.numbers["new"]
        else:
            name, result = rng.choice([("old", self.old), ("new", self.new)])
            self.save(result, self.work)
            found = contents(self.work)
            more = {*found} - {*self.foreign} - self.mine(found)
            assert not more, f"left behind after the next: {sorted(more)}"
            assert numbers(self.work / "o.onnx") == self.numbers[name], "the next save failed"

    def whole(self, found: dict[str, bytes]) -> str:
        """Which of both is there; every byte of it, and no report of a newer one."""
        assert "o.onnx" in found, "no model at all"
        side = "new" if found["o.onnx"] == self.states["new"]["o.onnx"] else "old"
        state = self.states[side]
        for name in own_files(Path("o.onnx"), state):
            assert found.get(name) == state[name], f"{name} is not that of the {side} model"
        assert numbers(self.work / "o.onnx") == self.numbers[side], "other numbers"
        if self.kind == "report":
            assert found["r.json"] in (state["r.json"], self.states["old"]["r.json"]), "the report is newer"
        return side

    @staticmethod
    def difference(found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
        return sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--plant", action="append", choices=PLANTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", type=int, help="stop there only")
    parser.add_argument("--naming", action="store_true", help="stop before changes of names only")
    parser.add_argument("--first", action="store_true", help="end a campaign with its first failure")
    options = parser.parse_args(arguments)
    for plant in options.plant or [None]:
        for fault in options.fault or FAULTS:
            for kind in options.kind or KINDS:
                with tempfile.TemporaryDirectory() as home:
                    only = NAMING if options.naming else OPERATIONS
                    campaign = Campaign(fault, kind, options.seed, plant, Path(home).resolve(), only)
                    with planted(plant):
                        at = options.at or 1
                        while campaign.once(at) and not options.at and not (options.first and campaign.failures):
                            at += 1
                found = {"stops": campaign.stops, "failures": campaign.failures}
                print(json.dumps({"plant": plant, "fault": fault, "kind": kind, **found}), flush=True)


if __name__ == "__main__":
    main()
