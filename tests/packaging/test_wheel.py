"""The wheel holds exactly the four folders under one name, and the installed package is this checkout's."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

DATA = {".py", ".egg"}


@pytest.fixture(scope="session")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def expected(root: Path, packages: dict[str, str]) -> dict[str, Path]:
    """Name in the wheel -> file of the checkout."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(root / folder).as_posix()}": path
        for folder, package in packages.items()
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in DATA or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def wheel(root: Path, packages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout and no old build/ is picked up."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, copy / name)
    for folder in packages:
        shutil.copytree(root / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "-w",
            out,
            copy,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


def test_wheel_holds_the_folders_and_nothing_else(wheel: Path, expected: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        content = {n: archive.read(n) for n in archive.namelist() if ".dist-info/" not in n}
    assert sorted(content) == sorted(expected)
    assert content["onnx_egraph/py.typed"] == b""
    assert [n for n, path in expected.items() if content[n] != path.read_bytes()] == []


def test_wheel_metadata(wheel: Path, project: dict[str, Any]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = {n.split(".dist-info/")[1]: archive.read(n).decode() for n in archive.namelist() if ".dist-info/" in n}
    assert "Requires-Python: >=3.11\n" in info["METADATA"]
    assert "License-Expression: Apache-2.0\n" in info["METADATA"]
    assert info["METADATA"].count("Requires-Dist: ") == sum(
        len(group)
        for group in (
            project["project"]["dependencies"],
            *project["project"]["optional-dependencies"].values(),
        )
    )
    assert "onnx-egraph = onnx_egraph.cli:main" in info["entry_points.txt"]
    assert "Apache License" in info["licenses/LICENSE"]


def test_every_folder_with_python_files_is_a_listed_package(
    root: Path, packages: dict[str, str], project: dict[str, Any]
) -> None:
    """A sub-package missing in the list works in an editable install and is absent from the wheel."""
    setuptools = project["tool"]["setuptools"]
    assert setuptools["package-dir"] == {package: folder for folder, package in packages.items()}
    below = {p.parent.relative_to(root) for f in packages for p in (root / f).rglob("*.py")}
    assert sorted(setuptools["packages"]) == sorted(".".join([packages[f.parts[0]], *f.parts[1:]]) for f in below)


def test_dev_extra_is_the_union_of_the_groups(project: dict[str, Any]) -> None:
    groups = project["dependency-groups"]
    assert sorted(project["project"]["optional-dependencies"]["dev"]) == sorted(
        requirement for group in groups.values() for requirement in group
    )


def test_every_dependency_has_a_range_and_a_reason(root: Path, project: dict[str, Any]) -> None:
    lines = (root / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for requirement in (
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["experiment"],
    ):
        assert ">=" in requirement, requirement
        assert ",<" in requirement, requirement
        reasons = [line.split("#", 1)[1].strip() for line in lines if f'"{requirement}",' in line and "#" in line]
        assert max(map(len, reasons), default=0) > 10, requirement


def test_imported_package_is_this_checkout(expected: dict[str, Path]) -> None:
    """Guards against testing an old install: pip does not refresh one that is a copy."""
    spec = importlib.util.find_spec("onnx_egraph")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    stale = []
    for name, path in expected.items():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if path.suffix == ".py":
            found = importlib.util.find_spec(module)
            if found is None or found.origin is None or Path(found.origin).read_bytes() != path.read_bytes():
                stale.append(name)
    assert stale == [], f"reinstall: {installed} differs from the checkout"


def test_version_is_the_changelog_s_first(root: Path, project: dict[str, Any]) -> None:
    headings = [x for x in (root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if x.startswith("## ")]
    assert headings[0].split()[1] == project["project"]["version"]
