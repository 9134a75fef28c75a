"""Near misses: rules of the fusion stages that would match if one guard were dropped, and where a pattern
stopped.

Asked for on demand: the rules run once more over a saturated e-graph, each without one of its guards, and
only record what they match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .dtypes import NAMES
from .ops import FLOAT, INT, OPS, TENSOR, Op
from .rule import Guard, Rule, Sides, flatten, named
from .saturate import Engine, Frozen

#: Stages whose rules make fused operators.
FUSING = ("fuse", "target")
#: Markers that many graphs hold without any fused operator in sight.
_COMMON = frozenset({"Wide", "RSqrt", "DimT", "Scores", "RepeatKV", "Cell", "Stack"})
_NONE = Op("", (), None)
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_RELATIONS = frozenset({"const", "doubled", "irange", "source", "sized", "supported"})


@dataclass(frozen=True, slots=True)
class Miss:
    """Rule `rule` matches at class `cls` but for one guard. `needs` is the guard, `found` the facts it was
    tried on.
    """

    cls: int
    rule: str
    law: str
    makes: str
    needs: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.law}) needs {self.needs}: {self.found}"


def near_misses(engine: Engine, frozen: Frozen, live: Collection[int]) -> list[Miss]:
    """What almost matched at the classes `live`, one miss per class and rule, in a fixed order.

    `frozen` is the e-graph of `engine` before this call, which adds relations to it but no terms and no
    equalities.
    """
    engine.run("(ruleset nearmiss)")
    tried: dict[str, tuple[int, Sides, Guard, list[tuple[str, str]]]] = {}
    late: set[str] = set()  # dropped more than the one guard
    for number, rule in enumerate(engine.rules):
        for s, sides in enumerate(rule.sides):
            if not _makes_progress(rule, sides):
                continue
            for g, guard in enumerate(sides.when):
                text = _without(sides, g, rule.variables)
                if text is None:
                    continue
                facts, root, columns, alone = text
                relation = f"miss-{number}-{s}-{g}"
                sorts = " ".join(["T", *(sort for _, sort in columns)])
                names = " ".join([root, *(name for name, _ in columns)])
                engine.run(f"(relation {relation} ({sorts}))")
                engine.run(f"(rule ({facts}) (({relation} {names})) :ruleset nearmiss)")
                tried[relation] = (number, sides, guard, columns)
                if not alone:
                    late.add(relation)
    engine.run("(run nearmiss 1)")
    functions = engine.egraph.freeze().functions
    fired = {c: {m for k in by for m in engine.rules[k].roots()[1]} for c, by in frozen.why.items()}
    found: dict[tuple[int, int], Miss] = {}
    for relation in sorted(tried, key=lambda r: r in late):
        number, sides, guard, columns = tried[relation]
        rule = engine.rules[number]
        for row in sorted((_read(engine, frozen, columns, r) for r in functions[relation].rows), key=repr):
            cls, values = row
            makes = sides.rhs.op.name if sides.rhs.op is not None else ""
            if cls not in live or (cls, number) in found or makes in fired.get(cls, ()):
                continue
            found[cls, number] = Miss(
                cls, rule.name, rule.law, makes, _called(guard.says), _found(frozen, columns, values)
            )
    return [found[key] for key in sorted(found)]


def _makes_progress(rule: Rule, sides: Sides) -> bool:
    """The law makes a fused operator or a marker on the way to one."""
    made = sides.rhs.op
    if made is None or made.name in _COMMON:
        return False
    return rule.stage in FUSING or (rule.stage == "marker" and made.marker)


def _without(
    s: Sides, dropped: int, sorts: Mapping[str, str]
) -> tuple[str, str, list[tuple[str, str]], bool] | None:
    """(the facts of a law without one guard, its root, the variables that guard used, is it the only one to
    go).

    Guards and arithmetic that need a variable which only the dropped guard binds go as well. None if the left
    side is a bare variable, which would match everything.
    """
    atoms, sums, root, names = flatten(s.lhs)
    if not atoms:
        return None
    bound = set(_WORD.findall(" ".join(atoms)))
    facts = list(atoms)
    waiting = [*(named(g.text, names) for i, g in enumerate(s.when) if i != dropped), *sums]
    progress = True
    while progress:
        progress, later = False, list[str]()
        for fact in waiting:
            known, binds = _variables(fact)
            if known <= bound:
                facts.append(fact)
                bound |= binds
                progress = True
            else:
                later.append(fact)
        waiting = later
    guard = s.when[dropped]
    columns = [(n, sorts[n]) for n in sorted(guard.uses & bound) if sorts.get(n) in (TENSOR, INT, FLOAT)]
    return " ".join(facts), root, columns, not waiting


def _variables(fact: str) -> tuple[set[str], set[str]]:
    """(variables a guard needs bound before it, variables it binds), by the form guards are printed in."""
    words = _bare(fact)
    if fact[1:].split()[0] in _RELATIONS:
        return set(), words
    binds: set[str] = set()
    for form in re.finditer(
        r"\(= \((?:fval|dtype|rank|len|vec-length|vec-get|[-+*/%]|min|max|abs) [^=]*\) ([A-Za-z_]\w*)\)", fact
    ):
        binds.add(form[1])
    for form in re.finditer(r"\(= ([A-Za-z_]\w*) \(", fact):
        binds.add(form[1])
    binds |= set(re.findall(r"\(DNum ([A-Za-z_]\w*)\)", fact))
    return words - binds, binds | words


def _bare(fact: str) -> set[str]:
    """Symbols of a fact that are not in head position."""
    plain = re.sub(r'"[^"]*"', "", fact)
    return set(_WORD.findall(re.sub(r"\([^\s()]+", "(", plain)))


def _read(
    engine: Engine, frozen: Frozen, columns: Sequence[tuple[str, str]], row: Any
) -> tuple[int, list[Any]]:
    read: dict[str, Callable[[Any], Any]] = {
        INT: engine.egraph.value_to_i64,
        FLOAT: engine.egraph.value_to_f64,
        TENSOR: frozen.class_of,
    }
    values = [read[sort](v) for (_, sort), v in zip(columns, row.inputs[1:], strict=True)]
    return frozen.class_of(row.inputs[0]), values


def _found(frozen: Frozen, columns: Sequence[tuple[str, str]], values: Sequence[Any]) -> str:
    """The facts of what a guard looked at, such as `w is float32[64]`."""
    said = []
    for (name, sort), value in zip(columns, values, strict=True):
        said.append(f"{name} is {describe(frozen, value) if sort == TENSOR else value}")
    return ", ".join(said)


def describe(frozen: Frozen, cls: int) -> str:
    """Type, shape and, for a constant of one element, the value of a class."""
    shape = frozen.shape(cls)
    dims = (
        "[rank unknown]" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"
    )
    number = frozen.number.get(cls)
    return (
        NAMES.get(frozen.dtype.get(cls, 0), "unknown type")
        + dims
        + ("" if number is None else f" {number:g}")
    )


def _called(text: str) -> str:
    """A guard with its facts as calls: `(dim w -1) = (DNum 1)` becomes `dim(w, -1) = 1`."""
    while True:
        calls = re.sub(
            r"\(([\w-]+) ([^()]*)\)", lambda m: f"\x01{m[1]}\x02{', '.join(m[2].split(' '))}\x03", text
        )
        if calls == text:
            break
        text = calls
    text = re.sub("\x01DNum\x02([^\x01\x02\x03]*)\x03", r"\1", text)
    text = text.replace("fval\x02", "value\x02")
    return text.translate({1: None, 2: "(", 3: ")"})


@dataclass(frozen=True, slots=True)
class Stop:
    """A pattern that got as far as the marker `marker` at class `cls`; `laws` are those that take it
    further.
    """

    cls: int
    marker: str
    laws: tuple[str, ...]

    def __str__(self) -> str:
        return f"got as far as {self.marker}, and none of these matched: {'; '.join(self.laws)}"


def stopped(engine: Engine, frozen: Frozen, live: Collection[int], missed: Sequence[Miss]) -> list[Stop]:
    """Where, among the classes `live`, a pattern reached a stage marker that no rule took any further.

    Markers which a rule of `missed` would have taken are explained by it.
    """
    told = {m.rule for m in missed}
    takers: dict[str, list[Rule]] = {}
    for rule in engine.rules:
        if rule.stage in FUSING and not rule.egglog:
            taken = {n for takes, _ in rule.takes_and_makes() for n in takes}
            for marker in sorted(n for n in taken if n in OPS and OPS[n].marker):
                takers.setdefault(marker, []).append(rule)
    used = {c for r in frozen.rows if OPS.get(r.op, _NONE).marker for c in r.children if c != r.cls}
    rows = {(r.cls, r.op) for r in frozen.rows if r.op in takers and r.op not in _COMMON}
    fused = {c for c, by in frozen.why.items() for k in by if engine.rules[k].stage in FUSING}
    untold = {m for m, rules in takers.items() if not any(r.name in told for r in rules)}
    return [
        Stop(cls, marker, tuple(f"{r.name} ({r.law})" for r in takers[marker]))
        for cls, marker in sorted(rows)
        if marker in untold and cls in live and cls not in used and cls not in fused
    ]


__all__ = ["FUSING", "Miss", "Stop", "describe", "near_misses", "stopped"]
