"""What a measured price holds for: processor, runtime, provider and threads; and where tables lie."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import onnxruntime as ort

_FIELDS = ("model name", "cpu family", "model", "stepping")


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor by its model, and how onnxruntime runs on it."""

    processor: str
    onnxruntime: str
    provider: str = "CPUExecutionProvider"
    threads: int = 1

    @classmethod
    def this(cls) -> Machine:
        """The machine that runs this, with one thread."""
        return cls(_processor(), ort.__version__)

    def differences(self, other: Mapping[str, object]) -> list[str]:
        """What another one says otherwise."""
        return [
            f"{name} is {other.get(name)!r}, here {value!r}"
            for name, value in asdict(self).items() if other.get(name) != value
        ]  # fmt: skip

    @property
    def file(self) -> Path:
        """The default place of the table: a file of this machine in the user's folder of caches.

        XDG_CACHE_HOME says where that is, if it is an absolute path.
        """
        given = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = given if given.is_absolute() else Path.home() / ".cache"
        short = re.sub(r"\W+", "-", self.provider.removesuffix("ExecutionProvider").lower())
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return folder / "onnx-egraph" / f"measured-{short}-{self.onnxruntime}-{digest}.json"


def _processor() -> str:
    """The model, with the numbers by which models of one name differ, as virtual machines give them."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    lines = (line.partition(":") for line in first.splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    found = [said[_FIELDS[0]]] if _FIELDS[0] in said else [platform.machine()]
    return ", ".join([*found, *(f"{name} {said[name]}" for name in _FIELDS[1:] if name in said)])
