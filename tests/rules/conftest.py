"""Options of the rule tests: `-m deep` draws a hundred times as many samples."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deep: soundness of every rule on 100 times as many samples; only with -m deep")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "deep" in str(config.option.markexpr):
        return
    deep = [i for i in items if i.get_closest_marker("deep")]
    if deep:
        config.hook.pytest_deselected(items=deep)
        items[:] = [i for i in items if i not in deep]
