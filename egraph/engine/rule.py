"""Rules: one algebraic law each, with its guards, its numeric contract and the shapes it is checked on."""

from __future__ import annotations

import inspect
import itertools
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import RuleError
from ..terms import FLOAT, INT, OPS, TENSOR, Op
from ..terms.expression import Env, Expr, Int, variable
from .assumption import FINITE, Assumption
from .sexpr import compile_text, heads, placed

CONTRACTS = ("exact", "reassociated", "finite")
_SUPPORTED = re.compile(r'\(supported "(\w+)"')
STAGES = ("normal", "marker", "fuse", "target")
#: A vector of numbers in a pattern, by which the e-graph finds it: a table is joined early, a primitive computed late.
VECTOR = re.compile(r'\(vector "([-\d ]+)"\)')


@dataclass(frozen=True, slots=True)
class Guard:
    """A side condition on facts.

    `text` is an egglog fact; `test` evaluates it on arrays, may bind a free variable in `env`, and says whether it
    holds.
    """

    text: str
    test: Callable[[dict[str, Any]], bool] = field(compare=False)
    uses: frozenset[str]
    says: str
    anchors: bool = False  # a relation with few rows: a rule may start from it, with a bare variable on the left


@dataclass(frozen=True)
class Sides:
    """lhs = rhs under guards.

    `states` are further equalities: dimensions no shape law can derive, other outputs of the same node. With `replaces`
    the left term is done with once the right one exists: no rule looks at it again. For markers only. What follows
    from these is computed when it is first asked for, and kept: every e-graph asks every law the same.
    """

    lhs: Expr
    rhs: Expr
    when: Sequence[Guard] = ()
    states: Sequence[tuple[Expr, Expr]] = ()
    replaces: bool = False

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
        return frozenset(m[1] for g in self.when if (m := _SUPPORTED.match(g.text)))

    @cached_property
    def _printed(self) -> tuple[list[str], list[str], list[str], str, str]:
        """Facts, guards and arithmetic of the egglog rule; the variable of the root; the actions."""
        atoms, sums, root, names = flatten(self.lhs)
        stated = " ".join(f"(union {a.text()} {b.text()})" for a, b in self.states)
        done = ""
        if self.replaces:
            done = f"(subsume {next(a for a in atoms if a.startswith(f'(= {root} '))[len(root) + 4 : -1]})"
        action = " ".join(filter(None, [f"(union {root} {self.rhs.text()})", stated, done]))
        return atoms, [named(g.text, names) for g in self.when], sums, root, action

    def text(self, ruleset: str, name: str, drop: int | None, mark: str) -> str:
        """The egglog rule; as `Rule.text`."""
        atoms, guards, sums, root, action = self._printed
        facts = [*atoms, *(g for i, g in enumerate(guards) if i != drop), *sums]
        action = " ".join(filter(None, [action, mark.replace("$root", root)]))
        return f'(rule ({" ".join(facts)}) ({action}) :ruleset {ruleset} :name "{name}")'


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
    def loose(self) -> bool:
        """Whether it assumes something of values, so that strict mode does without it."""
        return any(isinstance(a, Assumption) and a.loose for a in self.assumes)

    def text(
        self, ruleset: str, *, drop: int | None = None, mark: str = "", readings: Collection[int] | None = None
    ) -> str:
        """The law in egglog's language. `drop` leaves one guard out; `mark` is an extra action, run for each match;
        `readings` are the numbers of those wanted (None: all).
        """
        if self.egglog:
            return placed(self.egglog, ruleset, mark)
        return "\n".join(
            s.text(ruleset, f"{self.name}#{i}" if len(self.sides) > 1 else self.name, drop, mark)
            for i, s in enumerate(self.sides) if readings is None or i in readings
        )  # fmt: skip

    def recorded(self, ruleset: str, relation: str) -> str:
        """The law as rules that make the right side and enter (left, right) into a relation, without equating them."""
        text = re.sub(r"\(subsume \([^()]*\)\) ?", "", self.text(ruleset))
        return text.replace("((union ", f"(({relation} ")  # what a rule states of dimensions stays as it is

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
        """The vectors of numbers that each reading names, or the one text."""
        texts = [s.text("", "", None, "") for s in self.sides] or [self.egglog]
        return [frozenset(VECTOR.findall(text)) for text in texts]

    @cached_property
    def asks(self) -> frozenset[str]:
        """The operators of a target that the law asks for, and those that its text does: what it fuses into."""
        texts = [self.egglog, *(g.text for s in self.sides for g in s.when)]
        return frozenset(found[1] for text in texts for found in re.finditer(_SUPPORTED, text))

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


def named(text: str, names: Mapping[str, str]) -> str:
    """A guard with the subterms of the left side replaced by the variables they are bound to, the largest first."""
    for term in sorted(names, key=len, reverse=True):
        text = text.replace(term, names[term])
    return text


def flatten(term: Expr) -> tuple[list[str], list[str], str, dict[str, str]]:
    """A pattern as egglog facts, its arithmetic, the variable its root is bound to, and subterm text -> variable.

    Equal subterms share a variable. Commutative operators are matched through their symmetric relation. Arithmetic on
    attributes comes apart, to be printed after the guards: egglog 13.2 computes primitives in the order written, and
    crashes on an operand that is not bound yet.
    """
    atoms: list[str] = []
    sums: list[str] = []
    names: dict[tuple[Any, ...], str] = {}
    texts: dict[str, str] = {}

    def visit(e: Expr) -> str:
        if e.head in ("var", "lit"):
            return e.text()
        known = names.get(e.key())
        if known is not None:
            return known
        args = " ".join(visit(a) for a in e.args)
        if e.head == "vec-of" and all(a.head == "lit" for a in e.args):
            v = names[e.key()] = texts[e.text()] = f"_{len(names)}"
            atoms.append(f'(= {v} (vector "{args}"))')
            return v
        if e.op is None and e.sort not in (INT, FLOAT):
            return f"({e.head} {args})"
        if e.op is None:
            v = names[e.key()] = f"_{len(names)}"
            sums.append(f"(= {v} ({e.head} {args}))")
            return v
        v = names[e.key()] = f"_{len(names)}"
        texts[e.text()] = v
        atoms.append(f"(sym-{e.head} {v} {args})" if e.op.commutative else f"(= {v} ({e.head} {args}))")
        return v

    root = visit(term)
    return atoms, sums, root, texts


# ---------------------------------------------------------------------------------------------------- guards and facts


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of a term, such as its rank: readable in guards only."""

    text: str
    read: Callable[[Env], Any] = field(compare=False)
    uses: frozenset[str]


Operand = Expr | Fact | int | float


def _text(x: Operand) -> str:
    return x.text() if isinstance(x, Expr) else x.text if isinstance(x, Fact) else repr(x)


def _uses(x: Operand) -> frozenset[str]:
    return x.variables() if isinstance(x, Expr) else x.uses if isinstance(x, Fact) else frozenset()


def _read(x: Operand, env: Env) -> Any:
    return x.value(env) if isinstance(x, Expr) else x.read(env) if isinstance(x, Fact) else x


def _unbound(x: Operand, env: Env) -> str | None:
    """The name of the variable x consists of, when env does not bind it yet."""
    if isinstance(x, Expr) and x.head == "DNum":
        x = x.args[0]
    return x.args[0] if isinstance(x, Expr) and x.head == "var" and x.args[0] not in env else None


def _multiple(x: Operand) -> tuple[Expr, int] | None:
    """(v, k) if x is the dimension k * v of a variable v."""
    if not isinstance(x, Expr) or x.head != "DNum" or x.args[0].head != "*":
        return None
    v, k = x.args[0].args
    return (v, k.args[0]) if v.head == "var" and k.head == "lit" else None


def _eq_multiple(x: Operand, v: Expr, k: int) -> Guard:
    """dim(x) = k * v, which binds v if nothing else does: egglog needs the quotient spelled out."""
    n = f"{v.text()}x{k}"
    facts = f"(= (DNum {n}) {_text(x)}) (= {v.text()} (/ {n} {k})) (= 0 (% {n} {k}))"

    def test(env: dict[str, Any]) -> bool:
        size = _read(x, env)
        if size is None or size % k:
            return False
        return bool(env.setdefault(v.args[0], size // k) * k == size)

    return Guard(facts, test, _uses(x) | v.variables(), f"{_text(x)} = {k} * {v.text()}")


def eq(x: Operand, y: Operand) -> Guard:
    """x = y. A variable that nothing else binds is bound here."""
    for a, b in ((x, y), (y, x)):
        multiple = _multiple(b)
        if multiple is not None:
            return _eq_multiple(a, *multiple)

    def test(env: dict[str, Any]) -> bool:
        for a, b in ((x, y), (y, x)):
            name = _unbound(a, env)
            if name is not None:
                env[name] = _read(b, env)
                return env[name] is not None
        left, right = _read(x, env), _read(y, env)
        return left is not None and left == right

    return Guard(f"(= {_text(x)} {_text(y)})", test, _uses(x) | _uses(y), f"{_text(x)} = {_text(y)}")


def _compare(op: str, x: Operand, y: Operand, holds: Callable[[Any, Any], bool]) -> Guard:
    def test(env: dict[str, Any]) -> bool:
        left, right = _read(x, env), _read(y, env)
        return left is not None and right is not None and holds(left, right)

    return Guard(f"({op} {_text(x)} {_text(y)})", test, _uses(x) | _uses(y), f"{_text(x)} {op} {_text(y)}")


def ne(x: Operand, y: Operand) -> Guard:
    return _compare("!=", x, y, lambda a, b: bool(a != b))


def lt(x: Operand, y: Operand) -> Guard:
    return _compare("<", x, y, lambda a, b: bool(a < b))


def le(x: Operand, y: Operand) -> Guard:
    return _compare("<=", x, y, lambda a, b: bool(a <= b))


def near(x: Expr, value: float, tolerance: float) -> Guard:
    """|x - value| < tolerance, for numbers the exporter rounded to the element type."""
    bound = f"(< (abs (- {x.text()} {value!r})) {tolerance!r})"
    return Guard(bound, lambda env: abs(x.value(env) - value) < tolerance, x.variables(),
                 f"{x.text()} within {tolerance:g} of {value:g}")  # fmt: skip


def num(n: Operand) -> Expr:
    """The dimension that is the number n."""
    inner = Int("lit", (n,)) if isinstance(n, int) else n
    if not isinstance(inner, Expr):
        raise RuleError("num() takes an integer or an integer variable")
    from ..terms.expression import Dim

    return Dim("DNum", (inner,))


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
        parameters = [p for p in inspect.signature(f).parameters if p not in spread]
        variables = {p: variable(p, hints[p]) for p in parameters}
        sides = tuple(
            f(**variables, **dict(zip(spread, values, strict=True))) for values in itertools.product(*spread.values())
        )
        taken = tuple(assumes)
        if contract == "finite" and not any(isinstance(a, Assumption) and a.loose for a in taken):
            taken = (*taken, FINITE)
        made = Rule(
            name, law[0].strip(), sides, contract, stage,
            (holds,) if isinstance(holds, Mapping) else tuple(holds), tuple(refuse), taken,
            {p: v.sort for p, v in variables.items()}, f"{f.__module__}:{f.__code__.co_firstlineno}",
        )  # fmt: skip
        for s in sides:
            _check_closed(name, s)
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
    name, law = re.search(r"^\s*;\s*name:\s*(\S+)", text, re.M), re.search(r"^\s*;\s*law:\s*(.+)$", text, re.M)
    if not name or not law:
        raise RuleError("an egglog rule file starts with '; name: kebab-case' and '; law: one line of algebra'")
    program = compile_text(text, name[1])
    return Rule(name[1], law[1].strip(), (), "reassociated", stage, (), (), egglog=program, source="egglog",
                declares=tuple(terms))  # fmt: skip


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


__all__ = [
    "CONTRACTS", "STAGES", "TENSOR", "Fact", "Guard", "Rule", "Sides", "eq", "flatten", "le", "load_egglog", "lt",
    "ne", "near", "num", "rule", "select",
]  # fmt: skip
