"""Rules: one algebraic law each, with its guards, its numeric contract and the shapes it is checked on."""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import RuleError
from ..terms import OPS, Op
from ..terms.expression import Expr, variable
from .assumption import FINITE, Assumption
from .guard import Guard, together
from .pattern import Pattern, flatten
from .sexpr import compile_text, heads, placed, stages, strings, title

CONTRACTS = ("exact", "reassociated", "finite")
STAGES = ("normal", "marker", "fuse", "target")


@dataclass(frozen=True)
class Sides:
    """lhs = rhs under guards.

    `states` are further equalities: dimensions no shape law can derive, other outputs of the same node. With `replaces`
    the left term is done with once the right one exists: no rule looks at it again. For markers only. What follows
    from these is computed when it is first asked for, and kept: every e-graph asks every law the same. With `once`,
    what commutes on the left is matched in the order in which it was written, and not in both: for a right side that is
    as good in the other.
    """

    lhs: Expr
    rhs: Expr
    when: Sequence[Guard] = ()
    states: Sequence[tuple[Expr, Expr]] = ()
    replaces: bool = False
    once: bool = False

    @cached_property
    def takes(self) -> frozenset[str]:
        """Names of the terms on the left."""
        return _names(self.lhs)

    @cached_property
    def makes(self) -> frozenset[str]:
        """Names of the terms on the right."""
        return _names(self.rhs)

    @cached_property
    def asks(self) -> frozenset[str]:
        """The operators of a target that the guards ask for."""
        return frozenset(g.operator for g in self.when if g.operator)

    @cached_property
    def pattern(self) -> Pattern:
        """The left side as egglog matches it."""
        return flatten(self.lhs, self.once)

    @cached_property
    def _printed(self) -> tuple[list[str], str, list[str], str]:
        """Facts, guards and arithmetic of the egglog rule; what its first action joins, the others, the left term."""
        p = self.pattern
        guards = together([p.named(f) for g in self.when for f in g.facts])
        facts = [f.text() for f in (*p.atoms, *guards, *p.sums)]
        states = [[p.names.get(e.key()) or p.named(e) for e in both] for both in self.states]
        stated = [f"(union {a.text()} {b.text()})" for a, b in states]
        term = next((f.args[1].text() for f in p.atoms if f.args[0] is p.root and f.head == "="), "")
        return facts, f"{p.root.text()} {self.rhs.text()}", stated, term

    def text(self, ruleset: str, name: str, mark: str, relation: str = "union") -> str:
        """The egglog rule; as `Rule.text`."""
        facts, joined, stated, term = self._printed
        done = f"(subsume {term})" if self.replaces and relation == "union" else ""
        actions = [f"({relation} {joined})", *stated, done, mark.replace("$root", self.pattern.root.text())]
        return f'(rule ({" ".join(facts)}) ({" ".join(filter(None, actions))}) :ruleset {ruleset} :name "{name}")'


@dataclass(frozen=True)
class Rule:
    """A named law. `sides` holds one or more readings of it (per arity or rank); each becomes one egglog rule.

    What follows from these is kept once it was asked for, as it is in `Sides`.
    """

    name: str
    law: str
    sides: tuple[Sides, ...]
    contract: str
    stage: str
    holds: tuple[Mapping[str, Any], ...]
    refuse: tuple[Mapping[str, Any], ...]
    assumes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)  # name -> sort
    source: str = ""
    egglog: str = ""  # plain-text rules carry their program here and have no sides
    declares: tuple[Op, ...] = ()  # terms of the caller that the text uses

    @property
    def named(self) -> list[str]:
        """The stages that forms of its text name, each of which takes a ruleset of its own."""
        return stages(self.egglog)

    @property
    def loose(self) -> bool:
        """Whether it assumes something of values, so that strict mode does without it."""
        return any(isinstance(a, Assumption) and a.loose for a in self.assumes)

    def text(
        self, ruleset: str, *, mark: str = "", readings: Collection[int] | None = None, relation: str = "union"
    ) -> str:
        """The law in egglog's language. `mark` is an extra action, run for each match; `readings` are the numbers of
        those wanted (None: all). With a `relation`, it makes the right side and enters (left, right) into that, without
        equating them; what it states of dimensions stays as it is.
        """
        if self.egglog:
            return placed(self.egglog, ruleset, mark, relation)
        return "\n".join(
            s.text(ruleset, f"{self.name}#{i}" if len(self.sides) > 1 else self.name, mark, relation)
            for i, s in enumerate(self.sides) if readings is None or i in readings
        )  # fmt: skip

    def within(self, present: Collection[str] | None, runs: Collection[str] | None) -> list[int]:
        """Numbers of the readings whose left side is made of these terms, and whose operators are among those a
        target runs (None: any); none for a rule in egglog's text, which is taken whole.
        """
        return [
            i for i, s in enumerate(self.sides)
            if (present is None or s.takes.issubset(present)) and (runs is None or s.asks.issubset(runs))
        ]  # fmt: skip

    @cached_property
    def vectors(self) -> list[frozenset[str]]:
        """The vectors of numbers that each reading names, or the one text; see `Pattern`."""
        return [s.pattern.vectors for s in self.sides] or [frozenset(strings(self.egglog, "vector"))]

    @cached_property
    def asks(self) -> frozenset[str]:
        """The operators of a target that the law asks for, and those that its text does: what it fuses into."""
        return frozenset(strings(self.egglog, "supported").union(*(s.asks for s in self.sides)))

    @cached_property
    def terms(self) -> frozenset[Op]:
        """Terms used that are not in the built-in table."""
        ops = {e.op for s in self.sides for t in (s.lhs, s.rhs) for e in t.subterms()}
        return frozenset(o for o in (*ops, *self.declares) if o is not None and o.name not in OPS)

    @cached_property
    def takes_and_makes(self) -> list[tuple[frozenset[str], frozenset[str]]]:
        """Names of the terms on the left and on the right of the law, for each reading of it."""
        if self.egglog:
            return [heads(self.egglog, {*OPS, *(op.name for op in self.declares)})]
        return [(s.takes, s.makes) for s in self.sides]

    def roots(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the outermost terms of both sides; none for a bare variable."""
        if self.egglog:
            return self.takes_and_makes[0]
        return (
            frozenset(s.lhs.op.name for s in self.sides if s.lhs.op is not None),
            frozenset(s.rhs.op.name for s in self.sides if s.rhs.op is not None),
        )


def _names(e: Expr) -> frozenset[str]:
    return frozenset(t.op.name for t in e.subterms() if t.op is not None)


# ------------------------------------------------------------------------------------------------------- the decorator


def rule(
    *,
    contract: str = "exact",
    stage: str = "normal",
    holds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    refuse: Sequence[Mapping[str, Any]] = (),
    assumes: Sequence[str] = (),
    expand: Mapping[str, Iterable[int]] | None = None,
) -> Callable[[Callable[..., Sides]], Rule]:
    """Make a Rule of a function from pattern variables to `Sides`.

    The parameters' annotations are the sorts; the docstring's first line is the law; the name is the function's, in
    kebab-case.

    contract: `exact`: equal bits, whatever the operands. `reassociated`: rounding differs, and with it what overflows
    or underflows on the way; NaN and infinities of the operands show up where they did, and nowhere else. `finite`:
    neither operands nor what is computed from them are NaN or infinite; the report says so, with the text in
    `assumes` or else `FINITE`, and strict mode does without the law.

    `expand` names plain-int parameters and the values to print the law for. `holds` and `refuse` are
    samples: shapes such as x="b n 2h" (letters are drawn), "=2.0" for a scalar constant, numbers for attributes; see
    soundness.py. Raises RuleError for an unknown contract or stage, a missing law, or an unbound variable.
    """
    if contract not in CONTRACTS or stage not in STAGES:
        raise RuleError(f"contract is one of {CONTRACTS}, stage one of {STAGES}; got {contract!r}, {stage!r}")

    def make(f: Callable[..., Sides]) -> Rule:
        hints = typing.get_type_hints(f)
        name = f.__name__.replace("_", "-").strip("-")
        law = (inspect.getdoc(f) or "").splitlines()
        if not law:
            raise RuleError(f"rule {name}: the docstring must state the law in its first line")
        spread = {k: tuple(v) for k, v in (expand or {}).items()}
        given = [*inspect.signature(f).parameters]
        if unknown := [p for p in spread if p not in given]:
            raise RuleError(f"rule {name}: expand names {unknown[0]!r}, which is no parameter")
        parameters = [p for p in given if p not in spread]
        for p in parameters:
            if not (isinstance(hint := hints.get(p), type) and issubclass(hint, Expr)):
                raise RuleError(f"rule {name}: parameter {p} wants a sort as annotation, such as Tensor, Int or Float")
        samples = (holds,) if isinstance(holds, Mapping) else tuple(holds)
        if not all(isinstance(sample, Mapping) for sample in (*samples, *refuse)):
            raise RuleError(f'rule {name}: a sample maps parameters to what is drawn for them, such as {{"x": "b n"}}')
        variables = {p: variable(p, hints[p]) for p in parameters}
        try:
            sides = tuple(
                f(**variables, **dict(zip(spread, values, strict=True)))
                for values in itertools.product(*spread.values())
            )
            for s in sides:
                _check_closed(name, s)
        except (TypeError, AttributeError, ValueError) as error:
            raise RuleError(
                f"rule {name}: {error}; a law returns Sides(left, right, when=[guards]) of terms, "
                "in which a number is written real(2.0)"
            ) from error
        taken = tuple(assumes)
        if contract == "finite" and not any(isinstance(a, Assumption) and a.loose for a in taken):
            taken = (*taken, FINITE)
        made = Rule(
            name, law[0].strip(), sides, contract, stage,
            samples, tuple(refuse), taken,
            {p: v.sort for p, v in variables.items()}, f"{f.__module__}:{f.__code__.co_firstlineno}",
        )  # fmt: skip
        if strange := made.asks - OPS.keys() - {op.name for op in made.terms}:
            raise RuleError(f"rule {name}: supported() asks for {sorted(strange)[0]!r}, and no term is named so")
        return made

    return make


def _check_closed(name: str, s: Sides) -> None:
    bound = set(s.lhs.variables())
    for g in s.when:
        bound |= g.uses
    missing = s.rhs.variables() - bound
    if missing:
        raise RuleError(f"rule {name}: {', '.join(sorted(missing))} occur on the right but are bound by nothing")
    if s.lhs.sort != s.rhs.sort:
        raise RuleError(f"rule {name}: sides are of sorts {s.lhs.sort} and {s.rhs.sort}")
    if s.lhs.head == "var" and not any(g.anchors for g in s.when):
        raise RuleError(f"rule {name}: the left side is a bare variable and would match everything")


def load_egglog(text: str, *, stage: str = "fuse", terms: Iterable[Op] = ()) -> Rule:
    """Rules in plain egglog text: `(rewrite ...)` and `(rule ...)` forms over the constructors of the term table.

    `terms` are the caller's own, made by `operator`, that the text uses. A form runs in `stage` unless it names a
    ruleset. The result is one Rule, named by a first line `; name: ...`; its law is `; law: ...`. Numeric samples
    cannot be given in text: the law is checked by `verify` and by explanations only. Raises RuleError if name or law
    is missing or the text cannot be parsed; names in it are checked when an e-graph is made.
    """
    if stage not in STAGES:
        raise RuleError(f"stage is one of {STAGES}; got {stage!r}")
    name, law = title(text)
    program = compile_text(text, name, STAGES)
    return Rule(name, law, (), "reassociated", stage, (), (), egglog=program, source="egglog", declares=tuple(terms))


def select(rules: Iterable[Rule], disable: Iterable[str] = ()) -> list[Rule]:
    """The rules not named in `disable`. Raises RuleError for a name that no rule has, and for two rules of one name."""
    chosen = list(rules)
    for r in chosen:
        if not isinstance(r, Rule):
            raise RuleError(f"{r!r} is no rule; `onnx_egraph.rules.ALL` holds the built-in ones, `disable` takes names")
    names = [r.name for r in chosen]
    twice = {n for n in names if names.count(n) > 1} if len(set(names)) != len(names) else set()
    if twice:
        raise RuleError(f"two rules are named {sorted(twice)[0]!r}")
    off = set(disable)
    for wrong in sorted(off - set(names)):
        raise RuleError(f"no rule is named {wrong!r}; `onnx-egraph rules` lists them")
    return [r for r in chosen if r.name not in off]
