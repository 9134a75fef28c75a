"""An engine used again is as good as a new one, holds nothing of the last graph, and is given up when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from onnx_egraph import Limits, Report, saturate_and_extract
from onnx_egraph.egraph.budget import Budget
from onnx_egraph.egraph.engine.engines import ENGINES
from onnx_egraph.egraph.engine.lang import load_egglog
from onnx_egraph.egraph.engine.saturate import Engine
from onnx_egraph.egraph.engine.term_graph import TermGraph
from onnx_egraph.egraph.errors import UnsoundMerge
from onnx_egraph.egraph.targets import target
from onnx_egraph.rules import ALL

EXPORTS = Path(__file__).parents[1] / "models" / "exports"
#: Three that share few terms: rotations, none, and relative positions.
NAMES = ("qwen3_posids_ts_eager", "tf4_bert_ts_eager", "t5_encoder_ts_eager")
CPU = target("cpu")


def alone(work: Callable[[], Any]) -> Any:
    """What `work` returns in a new thread, which has no engines."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def told(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__ if name != "times"}


def optimized(name: str, where: str = "cpu") -> tuple[bytes, dict[str, Any]]:
    result = saturate_and_extract(EXPORTS / f"{name}.onnx", target=where)
    model = result.model
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    return proto.SerializeToString(deterministic=True), told(result.report)


def test_the_same_bytes_from_a_new_engine_and_from_one_used_again() -> None:
    wanted = {name: alone(lambda name=name: optimized(name)) for name in NAMES}

    def again() -> list[bool]:
        order = [*NAMES, *reversed(NAMES)]
        return [optimized(name) == wanted[name] for name in order]

    assert all(alone(again))


def graph(kind: str) -> TermGraph:
    made = TermGraph()
    x = made.add("Input", 0)
    made.state("dtype", x, 1)
    made.dims(x, ["b", 4])
    made.roots = [made.add(kind, made.add("Cast", x, 1))]
    return made


def test_a_graph_of_fewer_terms_is_served_and_one_of_others_gets_a_larger_engine() -> None:
    def work() -> None:
        budget = Budget(Limits())
        wide = ENGINES.take(ALL, CPU, ["Input", "Cast", "Neg"], budget)
        ENGINES.keep(wide)
        again = ENGINES.take([*ALL], CPU, ["Input", "Cast"], budget)
        assert again is wide
        ENGINES.keep(again)
        wider = ENGINES.take(ALL, CPU, ["Input", "Softmax"], budget)
        assert wider is not wide
        assert wider.serves(["Cast", "Neg", "Softmax"])
        ENGINES.keep(wider)
        other = ENGINES.take(ALL[1:], CPU, ["Input"], budget)
        assert other is not wider
        assert ENGINES.take(ALL, CPU, ["Neg"], budget) is wider
        assert ENGINES.take(ALL, CPU, ["Neg"], budget) is not wider  # it is lent

    alone(work)


@pytest.mark.parametrize("kind", ["Neg", "Sqrt"])
def test_saturation_and_rows_are_those_of_a_new_engine(kind: str) -> None:
    def run(engine: Engine) -> tuple[Any, ...]:
        engine.load(graph(kind))
        done = engine.saturate(Limits())
        return done.stop, done.iterations, done.tuples, done.matches, engine.freeze().rows

    def work() -> None:
        everything = {name for r in ALL for takes, makes in r.takes_and_makes for name in takes | makes}
        budget = Budget(Limits())
        engine = ENGINES.take(ALL, CPU, {"Input", *everything}, budget)
        ENGINES.keep(engine)
        wanted = run(Engine(ALL, CPU, present=graph(kind).rows))
        for _ in range(2):
            again = ENGINES.take(ALL, CPU, graph(kind).rows, budget)
            assert again is engine
            assert run(again) == wanted
            ENGINES.keep(again)

    alone(work)


def test_what_is_kept_is_empty_and_little() -> None:
    def work() -> None:
        for rules in (ALL, ALL[1:], ALL[2:], ALL[3:]):
            engine = ENGINES.take(rules, CPU, graph("Neg").rows, Budget(Limits()))
            before = engine.tuples()
            engine.load(graph("Neg"))
            assert engine.tuples() > before
            ENGINES.keep(engine)
            assert engine.tuples() <= before
            assert not engine.freeze().values
            assert engine.graph is None
        assert len(ENGINES._kept) == 2

    alone(work)


def kept_after(**arguments: Any) -> list[Engine]:
    """The engines that a thread has after one call. They do not leave it: see `Engines`."""
    saturate_and_extract(EXPORTS / "tf4_bert_ts_eager.onnx", **arguments)
    return ENGINES._kept


def test_a_call_keeps_one_engine() -> None:
    assert alone(lambda: len(kept_after())) == 1


@pytest.mark.parametrize("limits", [Limits(iterations=1), Limits(tuples=1500)])
def test_none_is_kept_after_a_limit(limits: Limits) -> None:
    assert alone(lambda: len(kept_after(limits=limits))) == 0


def test_none_is_kept_after_an_error() -> None:
    false = load_egglog(
        "; name: seven\n; law: a product has seven axes\n(rule ((= x (MatMul a b))) ((set (rank x) 7)))"
    )

    def work() -> int:
        with pytest.raises(UnsoundMerge):
            kept_after(rules=[*ALL, false])
        assert not ENGINES._kept
        return len(kept_after())

    assert alone(work) == 1


def test_a_daemon_keeps_none() -> None:
    found: list[int] = []
    daemon = threading.Thread(target=lambda: found.append(len(kept_after())), daemon=True)
    daemon.start()
    daemon.join()
    assert found == [0]


def test_threads_share_nothing() -> None:
    wanted = optimized(NAMES[1])
    with ThreadPoolExecutor(2) as pool:
        assert all(found == wanted for found in pool.map(optimized, [NAMES[1]] * 5))
