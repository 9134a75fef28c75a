"""The decisions of one spelling: each has a name and options, and the first option is the plain form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from zlib import crc32

import numpy as np

T = TypeVar("T")


@dataclass
class Drawing:
    """Asked for every decision of a spelling. `picks` are decided beforehand, the rest is plain, or drawn by `seed`.

    A decision depends on its name and the seed only, so a name asked for twice gets one answer, and a new decision
    elsewhere changes no other. `fault` names the one place where the formula is to be written wrong.
    """

    seed: int | None = None
    picks: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    chosen: dict[str, str] = field(default_factory=dict)
    offered: dict[str, tuple[str, ...]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def choice(self, name: str, options: Sequence[str]) -> str:
        """One of the options. Those that do not fit here are left out by the caller."""
        if name not in self.chosen:
            self.offered[name] = tuple(options)
            if self.picks.get(name) in options:
                self.chosen[name] = self.picks[name]
            elif self.seed is None:
                self.chosen[name] = options[0]
            else:
                self.chosen[name] = options[
                    int(np.random.default_rng([self.seed, crc32(name.encode())]).integers(len(options)))
                ]
        return self.chosen[name]

    def wrong(self, name: str) -> bool:
        """Whether the formula is to be written wrong here."""
        if name not in self.faults:
            self.faults.append(name)
        return name == self.fault

    def changes(self) -> dict[str, str]:
        """What is not plain, to be printed and drawn again as `picks`."""
        return {name: option for name, option in self.chosen.items() if option != self.offered[name][0]}


def one_change(draw: Callable[[Drawing], T]) -> Iterator[tuple[str, str, T]]:
    """The plain form with each option of each decision, and of the decisions and options that only such a change
    brings up.
    """
    plain = Drawing()
    yield "plain", "plain", draw(plain)
    known = {(name, option) for name, options in plain.offered.items() for option in options}
    waiting: list[tuple[dict[str, str], str, str]] = [
        ({}, name, option) for name, options in plain.offered.items() for option in options[1:]
    ]
    while waiting:
        before, name, option = waiting.pop(0)
        picks = {**before, name: option}
        changed = Drawing(picks=picks)
        made = draw(changed)
        if changed.chosen.get(name) != option:
            continue
        yield name, option, made
        for new, options in changed.offered.items():
            fresh = [o for o in options if (new, o) not in known]
            known.update((new, o) for o in fresh)
            waiting += [(picks, new, o) for o in fresh if o != changed.chosen[new]]
