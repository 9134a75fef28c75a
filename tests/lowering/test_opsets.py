"""Opsets are raised only where every node that stays means the same there, and still runs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser
from onnxruntime.capi import _pybind_state

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.opsets import same_operator

_OPEN = 2**31 - 1


def kernels() -> dict[str, list[tuple[int, int]]]:
    """The versions that the CPU kernels of each operator of the default domain serve."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for kernel in _pybind_state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.domain in ("", "ai.onnx"):
            found[kernel.op_name].append(kernel.version_range)
    return found


def serves(versions: tuple[int, int], since: int) -> bool:
    """A kernel without an end serves the definition it was written for, and no later one."""
    first, last = versions
    return first == since or (last != _OPEN and first <= since <= last)


def test_what_has_a_kernel_has_one_in_the_raised_opset() -> None:
    known = kernels()
    for op in {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""} & set(known):
        for old, new in [*((n, 11) for n in range(7, 11)), *((n, 23) for n in range(11, 24))]:
            if not same_operator(op, old, new):
                continue
            before, after = (onnx.defs.get_schema(op, n, "").since_version for n in (old, new))
            if any(serves(v, before) for v in known[op]):
                assert any(serves(v, after) for v in known[op]), f"{op} of opset {old} has no kernel in {new}"


@pytest.mark.parametrize("extra", [
    "r = RandomUniformLike (x)",
    "i = Constant <value_ints = [0]> () \n w = Constant <value_floats = [0.0, 0.0, 1.0, 1.0]> () \n box0 = Constant "
    "<value_ints = [1, 4]> () \n box = Reshape (w, box0) \n r = RoiAlign (x, box, i)",
])  # fmt: skip
def test_a_node_left_behind_keeps_the_opset(extra: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[b,2,s,8] x, float[b,2,t,8] k) => (float[b,2,s,8] y, float[p,q,u,v] r) {{
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        a = MatMul (x, kt)
        w2 = Softmax <axis = -1> (a)
        y = MatMul (w2, k)
        {extra}
    }}"""
    model = parser.parse_model(text)
    result = saturate_and_extract(model)
    [opset] = [o.version for o in result.model.opset_import if o.domain == ""]
    assert opset == 17
    session = ort.InferenceSession(result.model.SerializeToString(), providers=["CPUExecutionProvider"])
    session.run(None, {n: np.ones((1, 2, 3, 8), np.float32) for n in "xk"})
