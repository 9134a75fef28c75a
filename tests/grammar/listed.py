"""The spellings with one change that do not fuse yet: unfused.txt, a line "formula | decision | option" for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from grammar.choices import Drawing, one_change
from grammar.formulas import FORMULAS
from grammar.judge import groups
from grammar.writer import Spelling

FILE = Path(__file__).with_name("unfused.txt")
#: Decisions that are changed in a block, too: its own, and those that decide what its parts meet each other with.
BLOCK = frozenset((
    "block.norm", "block.activation", "block.rope", "linear", "groups", "dtype", "sizes", "mask", "attention.widened",
))  # fmt: skip

Change = tuple[str, str, str]  # formula, decision, option


def unfused() -> set[Change]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {tuple(part.strip() for part in line.split("|")) for line in lines}  # type: ignore[misc]


def line(change: Change) -> str:
    return " | ".join(change)


def changes(formulas: Iterable[str]) -> dict[Change, Spelling]:
    """Every spelling that is one change away from a plain one, or two where one brings up the other. A block is
    changed in what is its own.
    """
    found: dict[Change, Spelling] = {}
    number = count()

    def drawn(formula: str) -> Callable[[Drawing], Spelling]:
        return lambda draw: FORMULAS[formula](draw, f"p{next(number)}.")

    for formula in formulas:
        for decision, option, spelling in one_change(drawn(formula)):
            if formula != "block" or decision in BLOCK or decision == "plain":
                found[formula, decision, option] = spelling
    return found


def grouped(found: dict[Change, Spelling]) -> list[list[Spelling]]:
    """To be judged together: of one operator set, and those that are listed apart from those that are not."""
    listed = unfused()
    apart: dict[bool, list[Spelling]] = {True: [], False: []}
    for change, spelling in found.items():
        apart[change in listed].append(spelling)
    return [*groups(apart[False]), *groups(apart[True])]
