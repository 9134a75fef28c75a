"""A run of onnxruntime that does not end is ended: by the time that is left, and by a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_egraph import Limits, saturate_and_extract
from onnx_egraph.lowering.verify.session import Session, TooLong, source_of


@pytest.fixture
def endless() -> onnx.ModelProto:
    """A loop without a trip count whose condition stays true."""
    kinds = [("k", T.INT64, ()), ("more", T.BOOL, ()), ("a", T.FLOAT, (2,))]
    body = h.make_graph(
        [h.make_node("Identity", ["more"], ["still"]), h.make_node("Neg", ["a"], ["b"])], "body",
        [h.make_tensor_value_info(*kind) for kind in kinds],
        [h.make_tensor_value_info("still", T.BOOL, ()), h.make_tensor_value_info("b", T.FLOAT, (2,))],
    )  # fmt: skip
    graph = h.make_graph(
        [h.make_node("Loop", ["", "true", "x"], ["y"], body=body)], "g", [h.make_tensor_value_info("x", T.FLOAT, (2,))],
        [h.make_tensor_value_info("y", T.FLOAT, (2,))], [h.make_tensor("true", T.BOOL, (), [True])],
    )  # fmt: skip
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8)


def test_a_session_ends_a_run_and_can_be_asked_again(endless: onnx.ModelProto) -> None:
    session = Session(source_of(endless, ir.from_proto(endless)), False, patience=lambda: 0.2)
    for _ in range(2):
        with pytest.raises(TooLong):
            session.run({"x": np.zeros(2, np.float32)})


def test_a_verification_ends_with_its_time(endless: onnx.ModelProto) -> None:
    report = saturate_and_extract(endless, verify=True, limits=Limits(seconds=3)).report
    assert report.verified is False
    assert "NOT verified: time limit 3 s" in report.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_verification(number: signal.Signals, endless: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(endless, tmp_path / "in.onnx")
    handled = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in the background
    run = f"{handled}; from onnx_egraph import cli; cli.main()"
    command = [sys.executable, "-c", run, "optimize", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while "verifying" not in said:
            said = process.stderr.readline()
            assert said, "it ended before it verified"
        time.sleep(0.5)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert [p.name for p in tmp_path.iterdir()] == ["in.onnx"]


def test_an_exception_of_the_caller_that_ends_a_run_is_the_callers(endless: onnx.ModelProto) -> None:
    def handler(number: int, frame: object) -> None:
        raise TimeoutError("mine")

    session = Session(source_of(endless, ir.from_proto(endless)), False)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="mine"):
            session.run({"x": np.zeros(2, np.float32)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_model_is_verified_when_the_main_thread_has_ended(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {
        a = Neg (x)
        y = Neg (a)
    }'''), tmp_path / "in.onnx")  # fmt: skip
    program = f"""
import threading, time
from onnx_egraph import saturate_and_extract
def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print(saturate_and_extract({str(tmp_path / "in.onnx")!r}, verify=True).report.verified, flush=True)
threading.Thread(target=late).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n", done.stderr
