"""The README is right: its code runs, its help texts are the program's, its commands are CI's.

Help texts are rewritten by `python tests/packaging/test_readme.py`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onnx_egraph as package

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
HELP = re.compile(r"<!-- help: onnx-egraph (?P<args>[^>]*) -->\n```text\n(?P<text>.*?)```\n", re.S)
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.S | re.M)
DEMO, TESTS = 0, 1


def blocks(language: str) -> list[str]:
    text = README.read_text(encoding="utf-8")
    return [m["text"] for m in BLOCK.finditer(text) if m["language"] == language]


def onnx_egraph(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The console script's function in a process of its own, with a fixed width and no colors."""
    start = "import sys; sys.argv[0] = 'onnx-egraph'; from onnx_egraph.cli import main; main()"
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, "-c", start, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )


def help_text(args: str) -> str:
    shown = onnx_egraph(*shlex.split(args))
    assert shown.returncode == 0, shown.stderr
    return "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines()) + "\n"


def words(text: str) -> list[str]:
    return re.sub(r"[{}<>\[\]]", " ", text).split()


def with_help(readme: str) -> str:
    """The README with every help text as the program prints it now."""
    return HELP.sub(lambda m: m[0].replace(m["text"] + "```\n", help_text(m["args"]) + "```\n"), readme)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scratch folder that looks like the checkout to the README's code."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_run(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "caches"))
    code = blocks("python")[number]
    exec(compile(code, f"README.md, Python block {number}", "exec"), {"__name__": "readme"})
    written = re.findall(r'save\("([^"]+)"\)|(?:csv|html)="([^"]+)"', code)
    assert [name for names in written for name in names if name and not (folder / name).is_file()] == []


def test_all_that_is_imported_stands_in_the_package_itself() -> None:
    lines = [line for text in blocks("python") for line in text.splitlines() if "import" in line]
    assert lines
    names = [re.fullmatch(r"from onnx_egraph import ([\w, ]+)", line) for line in lines]
    assert all(names), lines
    assert {name for m in names if m for name in m[1].split(", ")} <= set(package.__all__)


def test_the_example_of_an_experiment_is_its_file() -> None:
    assert blocks("toml") == [(ROOT / "examples" / "experiment.toml").read_text(encoding="utf-8")]


def test_all_keys_of_an_experiment_are_told() -> None:
    section = README.read_text(encoding="utf-8").split("### Cost models compared")[1].split("\n## ")[0]
    told = re.findall(r"^\| `([^`]+)` \|", section, re.M)
    tables = {"costs": "[[cost]]", "workloads": "[[workload]]"}
    keys = {tables.get(f.name, f.name) for f in dataclasses.fields(package.Experiment)}
    assert {*told} == keys - {"folder"}


def test_help_texts_are_the_program_s() -> None:
    readme = README.read_text(encoding="utf-8")
    assert [m["args"] for m in HELP.finditer(readme)] == [
        f"{c} --help" for c in ("optimize", "explain", "calibrate", "experiment", "rules")
    ]
    current = with_help(readme)
    # Word by word: line breaks and brackets change with the version of the command-line library.
    assert words(readme) == words(current), "run: python tests/packaging/test_readme.py"


def test_demo_command(folder: Path) -> None:
    """The last part of the first command; the parts that make the environment are checked below."""
    make, install, demo = blocks("sh")[DEMO].strip().split(" && ")
    assert make == "python3 -m venv .venv"
    assert install == ".venv/bin/pip install ."
    program, *args = shlex.split(demo)
    assert program == ".venv/bin/onnx-egraph"
    done = onnx_egraph(*args, cwd=folder)
    assert done.returncode == 0, done.stderr
    output = folder / args[args.index("-o") + 1]
    assert output.is_file()
    assert 0 < output.stat().st_size < 2 * (folder / args[1]).stat().st_size
    assert "RotaryEmbedding" in done.stdout
    assert "verification on CPU: " in done.stdout
    assert f"wrote {output.name}" in done.stdout


def test_ci_runs_the_test_command() -> None:
    make, install, test = blocks("sh")[TESTS].strip().split(" && ")
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    steps = [line.replace(" --quiet", "").replace("exec ", "") for line in run.splitlines()]
    for step in (make, install, test):
        step = step.replace("python3", '"$python"').replace(".venv/bin/", '"$venv/bin/')
        step = re.sub(r'("\$venv/bin/\w+)', r'\1"', step).replace(" .venv", ' "$venv"')
        assert step in steps, step


def test_example_script(tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "optimize_qwen3.py", output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert output.is_file()
    # Logits are float32 of size about 1, and the two graphs may round differently at each of some 30 steps.
    match = re.search(r"largest difference .*: (\S+)", done.stdout)
    assert match is not None
    assert float(match[1]) < 3e-5


def test_links_lead_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = [t for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
        assert [t for t in targets if not (ROOT / t).exists()] == []
        named = re.findall(r"`((?:api|egraph|examples|lowering|rules|tests|\.ci)/[\w./]*)`", text)
        assert [t for t in named if not (ROOT / t).exists()] == []


if __name__ == "__main__":
    README.write_text(with_help(README.read_text(encoding="utf-8")), encoding="utf-8")
