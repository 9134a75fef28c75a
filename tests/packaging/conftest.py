"""The checkout as the structure tests see it: paths, syntax trees, imports."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# folder -> import package, as mapped in pyproject.toml; the wheel test compares the two
PACKAGES = {
    "api": "onnx_egraph",
    "egraph": "onnx_egraph.egraph",
    "lowering": "onnx_egraph.lowering",
    "rules": "onnx_egraph.rules",
}


@dataclass(frozen=True)
class Source:
    """One Python file of the checkout. `folder` is its first path component."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def folder(self) -> str:
        return self.path.relative_to(ROOT).parts[0]

    @property
    def shelf(self) -> str:
        """The folder inside its layer, or nothing."""
        return "/".join(self.path.relative_to(ROOT).parts[1:-1])

    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, absolute dotted name) of each import, at any depth; `from a import b` gives `a.b`."""
        package = [*PACKAGES[self.folder].split("."), *self.path.relative_to(ROOT).parent.parts[1:]]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def packages() -> dict[str, str]:
    return PACKAGES


@pytest.fixture(scope="session")
def parse() -> Callable[[str, str], Source]:
    """Make a Source from text, as if it stood at the given path of the checkout."""
    return lambda name, text: Source(ROOT / name, text, ast.parse(text))


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every Python file of the four packages."""
    found = []
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found.append(Source(path, text, ast.parse(text)))
    return found
