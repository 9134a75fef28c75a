"""The layers: egraph < rules, egraph < lowering, api on top; the shelves inside a layer, which stand on one another
without a circle; egglog and ONNX are known to one folder each.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from typing import Any

import pytest

# what a folder may import of the project, besides itself
ALLOWED = {
    "egraph": (),
    "rules": ("onnx_egraph.egraph",),
    "lowering": ("onnx_egraph.egraph",),
    "api": ("onnx_egraph.egraph", "onnx_egraph.lowering", "onnx_egraph.rules"),
}
# what a shelf may import of its own layer, besides itself; "" are the files that stand on no shelf
SHELVES = {
    "egraph": {
        "": (),
        "terms": ("",),
        "engine": ("", "terms"),
        "targets": ("", "terms", "engine"),
        "extraction": ("",),
        "explanation": ("", "terms", "engine", "extraction"),
        "checking": ("", "terms", "engine"),
        "proving": ("", "terms", "engine"),
    },
    "lowering": {
        "model": (),
        "shapes": ("model",),
        "": ("model", "shapes"),
        "files": ("model", "shapes", ""),
        "verify": ("model", "shapes", "", "files"),
        "measure": ("model", "shapes", "", "files", "verify"),
    },
    "rules": {"rope": (), "attention": ("rope",), "": ("rope", "attention")},
    "api": {"": (), "experiments": ("",)},
}
#: Files of api/ without a shelf that import from all shelves: what callers enter by.
DOORS = ("api/__init__.py", "api/cli.py")
# distribution -> the only folders that may import it
ONLY_IN = {
    "egglog": ("egraph",),
    "onnx.helper": ("lowering",),
    "onnx": ("lowering", "api"),
    "onnx_ir": ("lowering", "api"),
    "onnx_shape_inference": ("lowering",),
    "onnxruntime": ("lowering", "api"),
    "typer": ("api",),
    "rich": ("api",),
}


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def violations(source: Any, packages: dict[str, str]) -> list[str]:
    own = packages[source.folder]
    found = []
    for line, name in source.imports():
        for package, folders in ONLY_IN.items():
            if within(name, package) and source.folder not in folders:
                found.append(f"{source.name}:{line}: {name}: only {', '.join(folders)} may import {package}")
        if not within(name, "onnx_egraph"):
            continue
        lower = [p for p in packages.values() if p != "onnx_egraph" and within(name, p)]
        allowed = lower == [own] or bool(lower and lower[0] in ALLOWED[source.folder])
        if not allowed and not (source.folder == "api" and not lower):
            found.append(f"{source.name}:{line}: {name}: {source.folder} must not import it")
        if (lower == [own] or (source.folder == "api" and not lower)) and source.name not in DOORS:
            shelf = shelf_of(source.folder, name.removeprefix(own + "."))
            if shelf != source.shelf and shelf not in SHELVES[source.folder][source.shelf]:
                found.append(f"{source.name}:{line}: {name}: shelf {source.shelf!r} must not import {shelf!r}")
    return found


def shelf_of(folder: str, name: str) -> str:
    """The shelf of a module or of something in it, by its name inside the layer."""
    return first if (first := name.split(".")[0]) in SHELVES[folder] else ""


def test_the_shelves_are_all_there_are(sources: Any) -> None:
    found: dict[str, set[str]] = {}
    for source in sources:
        found.setdefault(source.folder, {""}).add(source.shelf)
    assert found == {folder: set(shelves) for folder, shelves in SHELVES.items()}


def test_the_shelves_stand_on_one_another() -> None:
    """TopologicalSorter raises CycleError for a circle."""
    for shelves in SHELVES.values():
        assert [*TopologicalSorter(shelves).static_order()]


def test_no_folder_imports_a_higher_one(sources: Any, packages: Any) -> None:
    assert {s.folder for s in sources} == set(packages)
    assert [v for source in sources for v in violations(source, packages)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("egraph/x.py", "import onnx"),
        ("egraph/x.py", "from onnx_ir import Model"),
        ("egraph/x.py", "def f():\n    from ..lowering import read"),
        ("egraph/x.py", "from .. import saturate_and_extract"),
        ("egraph/sub/x.py", "from ...rules.rope import rope"),
        ("rules/x.py", "from ..lowering.read import read"),
        ("rules/x.py", "import egglog.bindings"),
        ("rules/x.py", "import onnx_ir as ir"),
        ("lowering/x.py", "from ..rules import presets"),
        ("lowering/x.py", "from ..report import Report"),
        ("lowering/x.py", "import onnx_egraph.cli"),
        ("api/x.py", "from egglog.bindings import EGraph"),
        ("api/x.py", "from onnx import helper"),
        ("api/x.py", "from .experiments.task import Task"),
        ("egraph/terms/x.py", "from ..engine.rule import Rule"),
        ("egraph/engine/x.py", "def f():\n    from ..explanation.conflict import saturate"),
        ("egraph/engine/x.py", "from ..targets import Target"),
        ("egraph/checking/x.py", "from ..explanation import notation"),
        ("egraph/x.py", "from .terms import OPS"),
        ("lowering/shapes/x.py", "from ..reader import read"),
        ("lowering/x.py", "from .files.load import load"),
        ("rules/rope/x.py", "from ..attention.attention import sdpa"),
    ],
)
def test_the_check_sees_a_violation(name: str, text: str, parse: Any, packages: Any) -> None:
    assert len(violations(parse(name, text), packages)) >= 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "egraph/x.py",
            "import numpy as np\nfrom .errors import EGraphError\nfrom egglog.bindings import EGraph",
        ),
        (
            "egraph/targets/x.py",
            "from ..terms import OPS\nfrom ..engine.rule import Rule\nfrom ..errors import RuleError",
        ),
        ("lowering/files/x.py", "from ..reader import CALL\nfrom ..model.names import Names\nfrom .load import load"),
        ("rules/x.py", "from ..egraph.rule import rule\nfrom .layout import LAYOUT\nfrom . import norm"),
        (
            "lowering/x.py",
            "from onnx import helper\nimport onnx_ir\nfrom ..egraph import ops\nfrom .read import f",
        ),
        (
            "api/x.py",
            "from .egraph.errors import EGraphError\nfrom .rules import presets\nfrom .report import Report",
        ),
        (
            "api/experiments/x.py",
            "from ..egraph.errors import EGraphError\nfrom ..tuning import tune\nfrom .finding import Finding",
        ),
        ("api/cli.py", "from .experiments.task import Task"),
    ],
)
def test_the_check_lets_the_right_ones_pass(name: str, text: str, parse: Any, packages: Any) -> None:
    assert violations(parse(name, text), packages) == []


def test_imports_across_folders_are_relative(sources: Any) -> None:
    """An absolute one would be found under a second name when a folder is imported from the checkout."""
    absolute = [
        f"{s.name}:{node.lineno}"
        for s in sources
        for node in ast.walk(s.tree)
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("onnx_egraph"))
        or (isinstance(node, ast.Import) and any(a.name.startswith("onnx_egraph") for a in node.names))
    ]
    assert absolute == []
