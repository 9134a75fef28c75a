"""The recipes of CONTRIBUTING.md lead where they say: tried in a scratch copy of the sources.

A block with a path goes to the end of that file, or into the table of that file whose name follows; a block without one
is run with the copy as it is then.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?:python|text)(?: (?P<path>\S+))?(?: (?P<table>\w+))?\n(?P<text>.*?)^```$", re.S | re.M)
FOLDERS = ("api", "egraph", "lowering", "rules")


def recipes() -> dict[str, list[re.Match[str]]]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    chapter = text.split("## Recipes\n")[1].split("\n## ")[0]
    sections = [s for s in re.split(r"^### ", chapter, flags=re.M) if "```python" in s]
    return {section.splitlines()[0]: [*BLOCK.finditer(section)] for section in sections}


def scratch(folder: Path) -> Path:
    """A copy of the sources as the package, beside the examples."""
    package = folder / "onnx_egraph"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "api", package, ignore=unwanted)
    for layer in FOLDERS[1:]:
        shutil.copytree(ROOT / layer, package / layer, ignore=unwanted)
    shutil.copytree(ROOT / "examples", folder / "examples")
    return package


def put(package: Path, path: str, table: str | None, text: str) -> None:
    """Raises ValueError if the file has no such table."""
    folder, _, rest = path.partition("/")
    file = package / rest if folder == "api" else package / path
    source = file.read_text(encoding="utf-8")
    if table is None:
        file.write_text(f"{source}\n\n{text}", encoding="utf-8")
        return
    before, opened, after = re.split(rf"^({table}\b[^\n]*[(\[{{])$", source, maxsplit=1, flags=re.M)
    file.write_text(f"{before}{opened}\n{text}{after}", encoding="utf-8")


@pytest.mark.parametrize("name", recipes())
def test_recipe(name: str, tmp_path: Path) -> None:
    package, ran = scratch(tmp_path), 0
    for block in recipes()[name]:
        if block["path"]:
            put(package, block["path"], block["table"], block["text"])
            continue
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block["text"]],
            capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ran += 1
    assert ran


def test_a_new_rule_is_checked_like_the_others(tmp_path: Path) -> None:
    """The check finds no fault with the first recipe's rule, and one with the same rule without its guards."""
    package = scratch(tmp_path)
    [first, *_] = recipes().values()
    for block in first:
        if block["path"]:
            put(package, block["path"], block["table"], block["text"])
    code = (
        "from dataclasses import replace\nfrom onnx_egraph import check\n"
        "from onnx_egraph.rules.activation import fast_gelu_bias as r\n"
        "assert check(r) == []\n"
        "assert check(replace(r, sides=tuple(replace(s, when=s.when[-1:]) for s in r.sides)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
