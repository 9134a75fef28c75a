"""A model whose weights lie beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from roundtrip_models import CONSTANTS, SIZE, WEIGHT, info, model, n, norm


def with_side_file(folder: Path, size: int = SIZE) -> Path:
    """in.onnx, whose weights lie in weights.bin: w, and a matrix of size x SIZE behind it."""
    given = model(
        [*norm("x", "s"), n("MatMul", "s big", "y")],
        None,
        [info("y", "batch", size)],
        [*CONSTANTS, nh.from_array(np.zeros((1, 1), np.float32), "big")],
    )
    places = {"w": (0, 4 * SIZE), "big": (4096, 4 * SIZE * size)}
    for tensor in given.graph.initializer:
        if tensor.name in places:
            tensor.ClearField("raw_data")
            tensor.data_location = T.EXTERNAL
            for key, value in zip(("offset", "length"), places[tensor.name], strict=True):
                tensor.external_data.add(key=key, value=str(value))
            tensor.external_data.add(key="location", value="weights.bin")
    [big] = [t for t in given.graph.initializer if t.name == "big"]
    big.dims[:] = [SIZE, size]
    with (folder / "weights.bin").open("wb") as file:
        file.write(nh.to_array(WEIGHT).tobytes())
        file.seek(4096)
        file.write(np.linspace(-1, 1, SIZE * min(size, SIZE), dtype=np.float32).tobytes())
        file.truncate(4096 + 4 * SIZE * size)  # the rest is a hole: zeros
    (folder / "in.onnx").write_bytes(given.SerializeToString())
    return folder / "in.onnx"


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def many_weights(folder: Path, count: int, apart: bool) -> Path:
    """A chain of MatMul whose weights lie in one side file, or each in its own."""
    size = 32
    weights = np.random.default_rng(0).standard_normal((count, size, size)).astype(np.float32) / 6
    stored = []
    for k in range(count):
        tensor = nh.from_array(np.zeros((1, 1), np.float32), f"w{k}")
        tensor.dims[:] = [size, size]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        name = f"weights.{k if apart else 0}"
        with (folder / name).open("ab") as file:
            offset = file.tell()
            file.write(weights[k].tobytes())
        for key, value in {"location": name, "offset": offset, "length": weights[k].nbytes}.items():
            tensor.external_data.add(key=key, value=str(value))
        stored.append(tensor)
    nodes = [n("MatMul", f"v{k} w{k}", f"v{k + 1}") for k in range(count)]
    nodes += [n("Neg", f"v{count}", "u"), n("Neg", "u", "y")]
    graph = h.make_graph(nodes, "g", [info("v0", "b", size)], [info("y", "b", size)], stored)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    (folder / "in.onnx").write_bytes(model.SerializeToString())
    return folder / "in.onnx"
