"""The grammar is the package `grammar`; 10,000 spellings are drawn under `-m deep` only."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deep: takes minutes; runs only under -m deep")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "deep" not in config.option.markexpr:
        deep = [item for item in items if item.get_closest_marker("deep")]
        config.hook.pytest_deselected(items=deep)
        items[:] = [item for item in items if item not in deep]
