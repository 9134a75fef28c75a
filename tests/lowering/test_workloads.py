"""Workloads in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_egraph import Workload
from onnx_egraph.egraph.errors import ModelError
from onnx_egraph.lowering.workload import from_file

TEXT = """
[[workload]]
name = "decode"
weight = 0.9
past = 2048
dims = { batch = 4, "sequence length" = 1 }

[[workload]]
name = "prompt"
new = 512
"""


def test_the_tables_of_a_file_are_workloads(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(TEXT, encoding="utf-8")
    decode = Workload("decode", {"batch": 4, "sequence length": 1}, weight=0.9, past=2048)
    assert from_file(tmp_path / "w.toml") == [decode, Workload("prompt", new=512)]


@pytest.mark.parametrize(("text", "says"), [
    ("[[workload]", "cannot be read"), ("[workload]\nname = 'a'", r"tables \[\[workload\]\]"), ("", "are wanted"),
    ("[[workload]]\nname = 'a'\nsize = 3", "has no 'size'; it has name"), ("[[workload]]\nnew = 3", "has no name"),
    ("[[workload]]\nname = 'a'\nnew = 0", "workload 'a': new is 0"),
    ("workload = []", "are wanted"), ("[[workload]]\nname = 'a'\ndims = { batch = 0 }", r"dims\['batch'\] is 0"),
    ("seed = 1\n[[workload]]\nname = 'a'", "nothing else"),
    ("[[workload]]\nname = 'a'\n[[workload]]\nname = 'a'", "two workloads are named 'a'"),
])  # fmt: skip
def test_a_file_that_is_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=says) as raised:
        from_file(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_of_other_bytes(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"w\.toml: workloads cannot be read"):
        from_file(tmp_path / "w.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.toml: workloads cannot be read"):
        from_file(tmp_path / "nowhere.toml")
