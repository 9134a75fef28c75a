"""Engines that are used again: compiling the rules takes longer than saturating a small graph with them."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Sequence

from ..budget import Budget
from .rule import Rule
from .saturate import Engine, Runs

#: Engines that a thread keeps: one for each list of rules and target that it used last. One takes 15 to 30 MB.
_MOST = 2


class Engines(threading.local):
    """The engines that a thread keeps, emptied after each graph.

    What an engine makes of a graph does not depend on the graphs before it, so that nobody can see whether it is a new
    one. egglog lets no other thread than the one that made an e-graph touch it or drop it, hence the `local`; the end
    of the program would drop what a daemon has kept, so that a daemon keeps nothing.
    """

    def __init__(self) -> None:
        self._kept: list[Engine] = []  # the one used last is the last

    def take(self, rules: Sequence[Rule], target: Runs, present: Iterable[str], budget: Budget) -> Engine:
        """An engine for a graph of the terms `present`: a kept one if it was made for all of these, or else one that is
        made for them and for what the kept one was made for. Raises LimitReached, RuleError.
        """
        wanted = set(present)
        kept = (e for e in self._kept if e.target is target and len(e.rules) == len(rules))
        engine = next((e for e in kept if all(map(operator.is_, e.rules, rules))), None)  # a rule never changes
        if engine is not None:
            self._kept.remove(engine)
        if engine is None or not engine.serves(wanted):
            terms = wanted | (engine.reached or set() if engine is not None else set())
            engine = Engine(rules, target, present=terms, budget=budget, kept=True)
        engine.begin(wanted)
        return engine

    def keep(self, engine: Engine) -> None:
        """Take back an engine that has done its graph. One that has failed is not to be given back."""
        if threading.current_thread().daemon:
            return
        engine.end()
        self._kept = [*self._kept, engine][-_MOST:]


#: No state that anyone can see, as `Engines` says; it lives as long as the thread.
ENGINES = Engines()
