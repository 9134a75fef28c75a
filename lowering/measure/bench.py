"""One operator in onnxruntime: what it takes, with its weights cold, apart from what a run takes anyway."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import onnxruntime as ort

from ...egraph.targets import TensorType, Work
from ..verify.session import CPU, quiet_options, reason, to_value
from .operands import Unfit
from .single import Chain, Single, mixed

#: Seconds of CPU time.
Clock = Callable[[], float]

#: Bytes that copies of weights and of inputs and outputs of the model take in all, more than caches hold, and how many
#: there are at least; copies of others that are large, which the nodes before have just made, and bytes from which they
#: are; bytes that all operands may take.
_COLD, _COPIES, _JUST_MADE, _LARGE, _MOST = 192 << 20, 4, 2, 1 << 20, 512 << 20
#: Seconds that a run of a chain is to take: at least, and at most if a shorter chain does not.
_SHORT, _LONG = 0.0004, 0.06
#: Nodes of a chain.
_FEWEST, _LONGEST = 8, 128
#: Runs of a chain, and the seconds after which fewer do.
_RUNS, _FEW_RUNS, _ENOUGH = 9, 3, 0.3
#: Runs of the reference that say how fast the machine is now.
_RECENT = 15
#: The operator set of works of our own.
_OPSET = 17


def _tensor(*dims: int, const: bool = False) -> TensorType:
    return TensorType("float32", dims, const)


_REFERENCE = Work("MatMul", (_tensor(32, 256), _tensor(256, 256, const=True)), (_tensor(32, 256),))


#: What a layer has between its products: many small operators, each with code of its own, beside weights that come from
#: memory. How many of such rounds are run.
_ROUND = (
    Work("MatMul", (_tensor(1, 1, 512), _tensor(512, 512, const=True)), (_tensor(1, 1, 512),)),
    Work("Add", (_tensor(1, 1, 512), _tensor(1, 1, 512)), (_tensor(1, 1, 512),)),
    Work("Transpose", (_tensor(1, 1, 8, 64),), (_tensor(1, 8, 1, 64),), {"perm": (0, 2, 1, 3)}),
    Work("Concat", (_tensor(1, 8, 15, 64), _tensor(1, 8, 1, 64)), (_tensor(1, 8, 16, 64),), {"axis": -2}),
    Work("Softmax", (_tensor(1, 8, 1, 64),), (_tensor(1, 8, 1, 64),), {"axis": -1}),
    Work("SliceC", (_tensor(1, 1, 1536),), (_tensor(1, 1, 512),), {"axis": -1, "start": 512, "end": 1024, "step": 1}),
    Work("Erf", (_tensor(1, 1, 512),), (_tensor(1, 1, 512),)),
    Work("ReduceMean", (_tensor(1, 1, 512),), (_tensor(1, 1, 1),), {"axes": (-1,), "keep": 1}),
    Work("Mul", (_tensor(1, 1, 512), _tensor(const=True)), (_tensor(1, 1, 512),)),
)
_ROUNDS = 32


class Bench:
    """Times works one by one, with onnxruntime's own optimizations off and on one thread.

    `clock` gives the CPU seconds of the thread that runs them: others of the process, such as one that shows progress,
    do not count. `reference` are the seconds that a kernel took which is run throughout, to undo that a machine is
    faster at one time than at another; 0 takes those of the first runs.
    """

    def __init__(self, reference: float = 0.0, clock: Clock = time.thread_time) -> None:
        self._clock = clock
        self._reference = _Session(Single(_REFERENCE, _OPSET).chain(24, [1, 1]))
        self._recent: deque[float] = deque(maxlen=_RECENT)
        for _ in range(_RECENT):
            self._now()
        self._recent.clear()
        for _ in range(_RECENT):
            self._now()
        self.reference = reference or median(self._recent)

    def seconds(self, work: Work, opset: int, predicted: float) -> float:
        """What one run of the operator takes; `predicted` are seconds, to choose how often it is run.

        Raises Unfit for a work that cannot stand alone, and for what onnxruntime refuses.
        """
        single = _fit(work, opset)
        count, copies, results = plan(single, predicted)
        try:
            chain = _Session(single.chain(count, copies, results))
            empty = _Session(single.chain(0, copies))
            first = self._timed(chain)
            self._check(chain, work, count)
            self._timed(empty)
            if first < _SHORT / 4 and count < _LONGEST:
                return self.seconds(work, opset, min(predicted / 4, first / count))
            if first > 4 * _LONG and count > _COPIES:
                return self.seconds(work, opset, first / count)
            return self._apart(chain, empty) / count
        except Unfit:
            raise
        except Exception as error:  # onnxruntime's exceptions share no base of their own
            raise Unfit(reason(error)) from error

    def node(self) -> float:
        """What an operator takes more among others than in a row of its own kind: its code and data are not at hand."""
        rows = sum(self.seconds(work, _OPSET, 2e-6) for work in _ROUND)
        singles = [Single(work, _OPSET) for work in _ROUND]
        copies = [[_ROUNDS if t.const and t.size > 1 else 1 for t in work.ins] for work in _ROUND]
        parts = list(zip(singles, copies, strict=True))
        chain = _Session(mixed([s.chain(_ROUNDS, c, (), f"{k}_") for k, (s, c) in enumerate(parts)], _ROUNDS))
        empty = _Session(mixed([s.chain(0, c, (), f"{k}_") for k, (s, c) in enumerate(parts)], 0))
        for session in (chain, empty):
            self._timed(session)
        together = self._apart(chain, empty) / _ROUNDS
        return max(together - rows, 0.0) / len(_ROUND)

    def _apart(self, chain: _Session, empty: _Session) -> float:
        """What a run of a chain takes more than one of nothing, at the speed of the first runs of the reference."""
        spent, runs = 0.0, list[tuple[float, float]]()
        while len(runs) < _RUNS and (len(runs) < _FEW_RUNS or spent < _ENOUGH):
            self._now()
            runs.append((self._timed(chain), self._timed(empty)))
            spent += sum(runs[-1])
        took = median(a for a, _ in runs) - median(b for _, b in runs)
        return max(took, 0.0) * self.reference / median(self._recent)

    def _now(self) -> None:
        self._recent.append(self._timed(self._reference))

    def _timed(self, session: _Session) -> float:
        begin = self._clock()
        session.run()
        return self._clock() - begin

    def _check(self, chain: _Session, work: Work, count: int) -> None:
        """Raises Unfit where the results have other sizes than the work says."""
        shapes = chain.shapes()[1 : 1 + len(work.outs)] if count else []
        for shape, t in zip(shapes, work.outs, strict=False):
            if t.dtype and t.shape is not None and shape != t.shape:
                raise Unfit(f"alone, it gives {list(shape)} and not {list(t.shape)}")


def _fit(work: Work, opset: int) -> Single:
    try:
        return Single(work, opset)
    except Unfit:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise Unfit(f"there are no operands that fit it: {error}") from error


def plan(single: Single, predicted: float) -> tuple[int, list[int], list[int]]:
    """How many nodes a chain has, and how many copies of each operand, and of each result, take turns."""
    work = single.work
    each = [0 if a is None else a.nbytes for a in single.operands]
    made = [t.size * t.width for t in work.outs]
    cold = [(t.const or t.outer) and t.size > 1 for t in work.ins]
    turning = sum(n for n, turns in zip(each, cold, strict=True) if turns)
    turning += sum(n for n, t in zip(made, work.outs, strict=True) if t.outer)
    longest = max(_COPIES, min(_LONGEST, int(_LONG / max(predicted, 1e-9))))
    turns = 1
    if turning:
        turns = max(1, min(max(_COPIES, math.ceil(_COLD / turning)), _MOST // turning, longest))
    count = max(turns, min(longest, max(_FEWEST, math.ceil(_SHORT / max(predicted, 1e-9)))))
    few = [max(1, min(_JUST_MADE, _MOST // n)) if n >= _LARGE else 1 for n in each]
    copies = [turns if c else f for c, f in zip(cold, few, strict=True)]
    return count, copies, [turns if t.outer else 0 for t in work.outs]


class _Session:
    """A chain loaded and bound: every copy of an operand has memory of its own, and so has every result."""

    def __init__(self, chain: Chain) -> None:
        options = quiet_options(())
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._kept = [to_value(array) for array in chain.stored.values()]
        if self._kept:
            options.add_external_initializers(list(chain.stored), self._kept)
        self._session = ort.InferenceSession(chain.model.SerializeToString(), options, providers=[CPU])
        self._binding = self._session.io_binding()
        for name, array in chain.fed.items():
            value = to_value(array)
            self._kept.append(value)
            self._binding.bind_ortvalue_input(name, value)
        self._results = [to_value(np.zeros(length, np.int64)) for length in chain.results.values()]
        for name, value in zip(chain.results, self._results, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        for names, array in chain.taken:
            self._kept.append(to_value(array))
            for name in names:
                self._binding.bind_ortvalue_output(name, self._kept[-1])
        self._options = ort.RunOptions()
        self._options.log_severity_level = 4

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding, self._options)

    def shapes(self) -> Sequence[tuple[int, ...]]:
        """Of the operand that is probed, and of all results of the last run."""
        return [tuple(map(int, value.numpy())) for value in self._results]
