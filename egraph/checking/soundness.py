"""Is a rule true? Checks of one rule on samples, numerically and in an e-graph that holds nothing else.

    closed     the right side uses only what the left side or a guard binds
    equal      where all guards hold, both sides have one shape, element type and value (`holds`, with random
               dims, and the same samples disturbed: a broadcast axis, another rank, type or constant)
    fires      the e-graph joins both sides on `holds`, with a different number for each letter, and no two
               facts contradict each other; the rule alone comes to an end
    symbolic   as `fires` with symbols for dims; if it fires, both sides are equal for every number of them
    refuse     the guards fail on `refuse`, and the rule does not fire
    typed      the facts derived for both sides are those of the arrays
    varied     an attribute of the left side, unless a guard asks for it, has another value in some sample, or may be
               given one: a law that is true of one value only would be seen
    passed     an attribute of a marker or of an operator of a target that the law has a variable for is other than its
               default in some sample of `holds`: a law that drops it would be seen
    withheld   without the facts a guard asks for (a target, a constant's value, ...) the rule does not fire

What equal means is in `comparison.py`. Every problem is a text that names the rule, the sample, the seed, the operands
and the first differing element, with one line of Python that runs it again. The language of samples is in `sample.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from ..engine.fact import TOLD
from ..engine.rule import Rule, Sides
from ..errors import EGraphError, RuleError
from ..terms import FLOAT, INT, INTS, IllFormed
from ..terms.dtypes import code
from ..terms.expression import Expr
from ..terms.meaning import evaluate
from .comparison import bind, unequal
from .sample import Drawn, Sample, disturb, draw, vary
from .trial import Fired, Seeding, Trial

#: Draws of one disturbed sample before it is given up.
_ATTEMPTS = 6
#: From this number on, draws have another value for one of the attributes that the sample gives.
_WITH_OTHERS = 50_000
#: Draws with other values of an attribute before it is said to have one only.
_VARIED = 60
#: What the draws of each contract hold besides ordinary numbers, draw after draw.
_SPECIAL: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "exact": ("", "", "all", "all", "all"), "reassociated": ("", "", "few", "few", "overflow"), "finite": ("",) * 5,
})  # fmt: skip
#: What an attribute is where nothing is said of it; 0 if it is not listed.
_DEFAULTS: Mapping[str, float] = MappingProxyType({"scale": 1.0, "times": 1, "axis": -1})
#: Facts that only the reader or the target can state, so that a guard on one is testable by leaving it out.
WITHHELD = ("supported", *TOLD)


# ---------------------------------------------------------------------------------------------- the checks


class Checker:
    """All checks of one rule. Each returns a list of problems, empty if there is none.

    `obligations` is the rule whose guards say which facts may be withheld: a changed rule is held to the
    original's. `inert` is an e-graph without rules, to be shared by checkers of rules that declare no terms.
    A `hasty` one may stop at the first problem.
    """

    def __init__(
        self, rule: Rule, *, samples: int = 40, seed: int = 0, obligations: Rule | None = None,
        inert: Trial | None = None, hasty: bool = False,
    ) -> None:  # fmt: skip
        self.rule, self.samples, self.seed, self.hasty = rule, samples, seed, hasty
        self.obligations, self._inert = obligations or rule, inert

    @cached_property
    def trial(self) -> Trial:
        return Trial(self.rule)

    @cached_property
    def inert(self) -> Trial:
        """Without the rule: sides that are joined would share their facts."""
        return self._inert or Trial(self.rule, inert=True)

    @cached_property
    def _keys(self) -> list[tuple[Sides, frozenset[str], frozenset[str], Any, Any]]:
        """Each reading with the variables of its left side and of both, and what tells its sides from others'."""
        return [
            (s, s.lhs.variables(), s.lhs.variables() | s.rhs.variables(), s.lhs.key(), s.rhs.key())
            for s in self.rule.sides
        ]

    @cached_property
    def _attributes(self) -> dict[str, str]:
        """The attribute variables of the left sides, each with the name of the operand that it is, or is part of."""
        terms = [(t.op, t.args) for s in self.rule.sides for t in s.lhs.subterms() if t.op is not None]
        operands = [(name, a) for op, args in terms for (name, _), a in zip(op.operands, args, strict=True)]
        return {v: name for name, a in operands if a.sort in (INT, FLOAT, INTS) for v in sorted(a.variables())}

    def cases(self, which: str = "") -> Iterator[tuple[str, Sample]]:
        for kind, entries in (("holds", self.rule.holds), ("refuse", self.rule.refuse)):
            for i, entry in enumerate(entries):
                if kind.startswith(which):
                    yield f"{kind}[{i}]", Sample(entry, self.rule.variables)

    def problem(self, case: str, what: str, drawn: Drawn | None = None, seed: int | None = None) -> str:
        name = self.rule.name
        lines = [f"{name}: {what}", f"  sample {case}" + (f", seed {seed}" if seed is not None else "")]
        if drawn is not None:
            lines.append(f"  operands {drawn}")
        if seed is not None:
            lines.append(f"  again: soundness.replay(rule, {case!r}, {seed})   # rule = the rule named {name!r}")
        return "\n".join(lines)

    def closed(self) -> list[str]:
        if not self.rule.holds:
            return [self.problem("-", "no `holds` sample: nothing shows that the rule can fire")]
        found = []
        for case, sample in self.cases():
            given = {*sample.attributes, *sample.tensors, *sample.letters}
            for s in self.rule.sides:
                guards = frozenset().union(*(g.uses for g in s.when)) if s.when else frozenset()
                missing = (s.lhs.variables() | s.rhs.variables()) - given - guards
                if missing:
                    found.append(self.problem(case, f"nothing binds {sorted(missing)[0]!r}"))
                    break
        return found

    # --------------------------------------------------------------------------------------------- numbers

    def equal(self, which: str = "") -> list[str]:
        found = []
        for case, sample in self.cases(which):
            checked, problem, more = 0, "", self.samples // 2 if self._given(sample) else 0
            for k in (*range(self.samples), *range(_WITH_OTHERS, _WITH_OTHERS + more)):
                seed = self.seed * 100_000 + k
                n, problem = self.once(case, sample, seed)
                checked += n
                if problem:
                    found.append(problem)
                    break
            if not checked and not problem and case.startswith("holds"):
                found.append(self.problem(case, f"the guards held on none of {self.samples} draws"))
        return found

    def once(self, case: str, sample: Sample, seed: int) -> tuple[int, str]:
        """One draw: how many readings were compared, and the problem found."""
        rng = np.random.default_rng([seed, sum(map(ord, case))])
        # The first draws tell letters apart, the others are free; two of three of those are disturbed, again
        # and again until the left side can be computed.
        plain, special = seed % 100_000 < 2, _SPECIAL[self.rule.contract][seed % 5]
        scale = (1.0, 1.0, 1e-3, 10.0)[seed % 4]
        for _ in range(_ATTEMPTS):
            letters = sample.distinct(seed % 2) if plain else sample.random(rng)
            if seed % 100_000 >= _WITH_OTHERS:
                drawn = self._varied(sample, letters, str(rng.choice(self._given(sample))), rng, special)
            else:
                specs = None if plain or seed % 3 == 0 else disturb(sample, letters, rng)
                drawn = draw(sample, letters, rng, scale=scale, special=special, specs=specs)
            readings = self._readings(drawn)
            if readings:
                break
        compared = 0
        for s, env, failing in readings:
            if failing:
                continue
            compared += 1
            problem = unequal(self.rule, s, env, special == "overflow")
            if problem:
                return compared, self.problem(case, f"the sides differ: {problem}", drawn, seed)
        return compared, ""

    def _given(self, sample: Sample) -> list[str]:
        """The attributes of the left side that a sample gives."""
        return sorted(sample.attributes.keys() & self._attributes.keys())

    def _varied(
        self, sample: Sample, letters: Mapping[str, int], name: str, rng: np.random.Generator, special: str = ""
    ) -> Drawn:
        """A draw with another value for an attribute that the sample gives."""
        value = vary(sample, letters, name, self.rule.variables[name], self._attributes[name], rng)
        fixed = {name: value} if name in letters and isinstance(value, int) and value >= 0 else {}
        drawn = draw(sample, {**letters, **fixed}, rng, special=special)
        drawn.env[name] = value
        return drawn

    def varied(self) -> list[str]:
        found = []
        asked = frozenset[str]().union(*(g.uses for s in self.rule.sides for g in s.when))
        samples = [sample for _, sample in self.cases("holds")]
        for name in sorted(self._attributes.keys() - asked):
            given = [s for s in samples if name in s.attributes]
            if len({s.attributes[name] for s in given}) == 1 and not any(self._varies(name, s) for s in given):
                found.append(self.problem("holds", f"no sample gives the attribute {name!r} another value"))
        return found

    def _varies(self, name: str, sample: Sample) -> bool:
        """Whether the guards hold for some other value of an attribute."""
        rng = np.random.default_rng(self.seed)
        for _ in range(_VARIED):
            drawn = self._varied(sample, sample.random(rng), name, rng)
            other = drawn.env[name] != sample.attributes[name]
            if other and any(not failing for _, _, failing in self._readings(drawn)):
                return True
        return False

    def passed(self) -> list[str]:
        found: dict[str, set[Any]] = {}
        made = self.rule.asks
        for _, _, _, s, env in self._held():
            for t in (*s.lhs.subterms(), *s.rhs.subterms()):
                if t.op is not None and (t.op.marker or t.op.name in made):
                    for (name, sort), a in zip(t.op.operands, t.args, strict=True):
                        if sort in (INT, FLOAT) and a.variables():
                            found.setdefault(f"{name!r} of {t.op.name}", set()).add(a.value(env))
        idle = [k for k, values in found.items() if values <= {_DEFAULTS.get(k.split("'")[1], 0)}]
        return [self.problem("holds", f"no sample gives {k} another value than the default") for k in idle]

    # ------------------------------------------------------------------------------------- the e-graph

    def _plain(self, sample: Sample) -> Drawn:
        return draw(sample, sample.distinct(), np.random.default_rng(0))

    def _twin(self, sample: Sample) -> Drawn:
        """The sample again, with other numbers for the letters that are symbols."""
        return draw(sample, sample.twin(sample.distinct()), np.random.default_rng(0))

    def _readings(self, drawn: Drawn) -> list[tuple[Sides, dict[str, Any], list[int]]]:
        """Readings whose left side can be computed, with their environment and failing guards.

        Of readings with the same sides, the one with the fewest failing guards: the e-graph tries them all.
        """
        found: dict[Any, tuple[Sides, dict[str, Any], list[int]]] = {}
        computable: dict[Any, bool] = {}
        for s, names, used, left, right in self._keys:
            given = names <= drawn.env.keys()  # else a guard binds what the left side is computed with
            if given and left not in computable:
                computable[left] = _computable(s.lhs, drawn.env)
            if given and not computable[left]:
                continue
            try:
                env, failing = bind(s, drawn.env, drawn.letters, used)
            except (IllFormed, KeyError):
                continue
            best = found.get((left, right))
            if (best is None or len(failing) < len(best[2])) and (given or _computable(s.lhs, env)):
                found[left, right] = (s, env, failing)
        return list(found.values())

    def _held(self) -> Iterator[tuple[str, Sample, Drawn, Sides, dict[str, Any]]]:
        """Each sample of `holds`, drawn, with the readings whose guards hold on it."""
        for case, sample in self.cases("holds"):
            drawn = self._plain(sample)
            yield from ((case, sample, drawn, s, env) for s, env, failing in self._readings(drawn) if not failing)

    def _run(self, s: Sides, env: Mapping[str, Any], drawn: Drawn, other: Drawn, how: Seeding) -> Fired | str:
        try:
            return self.trial.run(s, drawn, other, env, how)
        except EGraphError as error:
            return str(error)

    def fires(self) -> list[str]:
        """fires, typed and saturates."""
        found = []
        for case, sample in self.cases("holds"):
            drawn = self._plain(sample)
            fit = [(s, env) for s, env, failing in self._readings(drawn) if not failing]
            if not fit:
                found.append(self.problem(case, "no reading's guards hold", drawn))
            runs = [self._run(s, env, drawn, self._twin(sample), Seeding()) for s, env in fit]
            # Arrays do not tell a symbol from a number: a reading for the one need not fire on the other.
            some = bool(sample.symbols) and any(isinstance(fired, Fired) and fired.joined for fired in runs)
            for fired in runs:
                if isinstance(fired, str):
                    found.append(self.problem(case, f"two facts contradict each other: {fired}", drawn))
                elif not fired.joined and not some:
                    found.append(self.problem(case, "the rule does not fire in the e-graph", drawn))
                elif not fired.saturation.complete:
                    found.append(self.problem(case, f"the rule alone does not end: {fired.saturation.stop}", drawn))
        return found

    def typed(self) -> list[str]:
        found = []
        for case, sample, drawn, s, env in self._held():
            try:
                fired = self.inert.run(s, drawn, self._twin(sample), env, Seeding(left=False, right=True))
            except EGraphError as error:
                found.append(self.problem(case, f"two facts contradict each other: {error}", drawn))
                continue
            found += [self.problem(case, p, drawn) for p in _wrong_facts(fired, env)]
        return found

    def refuse(self) -> list[str]:
        told: list[str] = []
        found: list[str] = []
        entries = []
        for case, sample in self.cases("refuse"):
            drawn = self._plain(sample)
            readings = self._readings(drawn)
            entries.append((min((len(r[2]) for r in readings), default=0), case, sample, drawn, readings))
            if not readings:
                told.append(self.problem(case, "the left side cannot be computed: the sample tests nothing", drawn))
            elif not entries[-1][0] and not self._needs_egraph(drawn):
                told.append(self.problem(case, "all guards hold on a sample the rule must refuse", drawn))
        for _, case, sample, drawn, readings in sorted(entries, key=lambda e: e[0]):  # where fewest guards fail
            if self.hasty and (told or found):
                break
            seeded: set[Any] = set()  # left sides that the e-graph has seen, with what guards bind in them
            for s, env, _ in readings:
                key = (s.lhs.key(), *(env[n] for n in sorted(s.lhs.variables() - drawn.env.keys())))
                fired = None if key in seeded else self._run(s, env, drawn, self._twin(sample), Seeding())
                seeded.add(key)
                if isinstance(fired, str):
                    found.append(self.problem(case, f"two facts contradict each other: {fired}", drawn))
                elif fired and fired.readings:
                    found.append(self.problem(case, "the rule fires on a sample it must refuse", drawn))
        return found + told

    def _needs_egraph(self, drawn: Drawn) -> bool:
        """Whether only facts, not arrays, tell the sample from one that holds: an operand that is no
        constant, a dimension that is no symbol.
        """
        names = [n for n, spec in drawn.specs.items() if not spec.constant]
        asked = self._asked()
        return any(p.head in ("DSym", "same-batch") for p in asked) or any(
            p.head in (*TOLD, "elem", "len") and p.args[0].head == "var" and p.args[0].args[0] in names for p in asked
        )

    def _asked(self) -> list[Expr]:
        """Every expression in the guards."""
        return [p for s in self.obligations.sides for g in s.when for f in g.facts for p in f.parts()]

    def symbolic(self) -> list[str]:
        found: list[str] = []
        for case, sample in self.cases():
            free = [c for c in sample.letters if c not in sample.fixed()]
            drawn = self._plain(sample)
            for s, env, _ in self._readings(drawn) if free else []:
                fired = self._symbol(case, sample, free, s, env, found)
                if not fired and case.startswith("holds") and len(free) > 1:
                    for letter in free:  # a guard asks for a number somewhere
                        self._symbol(case, sample, [letter], s, env, found)
        return found

    def _symbol(
        self, case: str, sample: Sample, chosen: Sequence[str], s: Sides, env: Mapping[str, Any], found: list[str]
    ) -> bool:
        """Whether the rule fires with the chosen letters as symbols; problems are added to `found`."""
        base, names = sample.distinct(), ", ".join(chosen)
        drawn = draw(sample, base, np.random.default_rng(0))
        shifted = {**sample.twin(base), **{c: base[c] + 1 for c in chosen}}
        other = draw(sample, shifted, np.random.default_rng(0))
        fired = self._run(s, env, drawn, other, Seeding())
        if isinstance(fired, str):
            found.append(self.problem(case, f"contradiction with symbols for {names}: {fired}", drawn))
            return True
        if not fired.joined:
            return False
        if _symbolic_sizes(s.rhs, env, {**env, **other.env}):
            bare = self._run(s, env, drawn, other, Seeding(sources=False))
            if isinstance(bare, Fired) and bare.joined:
                found.append(self.problem(case, "the rule asks for a size that no graph input has", drawn))
        problem = self._instances(case, sample, chosen, s, env)
        if problem:
            found.append(problem)
        return True

    def _instances(self, case: str, sample: Sample, chosen: Sequence[str], s: Sides, env: Mapping[str, Any]) -> str:
        """The sides for every number of the symbols: the rule has fired without knowing them."""
        base = sample.distinct()
        for k in range(6):
            rng = np.random.default_rng([self.seed, k])
            letters = {
                **base,
                **{c: v[k % len(v)] for c, v in sample.symbols.items()},
                **{c: int(rng.choice([1, 2, 3, *base.values()])) if k > 1 else k + 1 for c in chosen},
            }
            drawn = draw(sample, letters, rng)
            drawn.env = {**env, **drawn.env}
            try:
                problem = unequal(self.rule, s, drawn.env)
            except (IllFormed, KeyError):
                continue
            if problem:
                return self.problem(case, f"fires with symbols for {', '.join(chosen)}, but then {problem}", drawn)
        return ""

    def withheld(self) -> list[str]:
        found = []
        asked = {p.head for p in self._asked()}
        for kind in (k for k in WITHHELD if k in asked):
            for case, sample, drawn, s, env in self._held():
                fired = self._run(s, env, drawn, self._twin(sample), Seeding(without=frozenset((kind,))))
                if isinstance(fired, Fired) and fired.readings:
                    found.append(self.problem(case, f"fires although nothing states the fact {kind!r}", drawn))
        return found

    def all(self) -> list[str]:
        found = self.closed()
        if found:
            return found
        try:
            checks = (self.varied, self.passed, self.fires, self.refuse, self.typed, self.symbolic, self.withheld)
            return [*self.equal("holds"), *(problem for check in checks for problem in check())]
        except RuleError as error:
            return [f"{self.rule.name}: {error}"]


def _computable(e: Expr, env: Mapping[str, Any]) -> bool:
    try:
        evaluate(e, env)
    except (IllFormed, KeyError):
        return False
    return True


def _symbolic_sizes(e: Expr, env: Mapping[str, Any], twin: Mapping[str, Any]) -> bool:
    """Whether e asks for the size of a dimension that differs between the two environments."""
    sizes = [t.args[0] for t in e.subterms() if t.head == "DimT"]
    return any(d.value(env) != d.value(twin) for d in sizes)


def _wrong_facts(fired: Fired, env: Mapping[str, Any]) -> list[str]:
    found = []
    for term, dtype, rank, shape in fired.facts:
        try:
            value = evaluate(term, env)
        except (IllFormed, KeyError):
            continue
        if value is None:
            continue
        if dtype is not None and dtype != code(value):
            found.append(f"{term.text()} has element type {code(value)}, the facts say {dtype}")
        if rank is not None and rank != value.ndim:
            found.append(f"{term.text()} has rank {value.ndim}, the facts say {rank}")
        elif shape is not None and any(isinstance(d, int) and d != n for d, n in zip(shape, value.shape, strict=True)):
            found.append(f"{term.text()} has shape {value.shape}, the facts say {shape}")
    return found


def check(rule: Rule, samples: int = 40, seed: int = 0) -> list[str]:
    """Every problem found with the rule, as text; [] for a rule that passes all checks.

    `samples` numeric draws per entry of `holds`, from `seed`. Raises RuleError for a sample outside the language. A
    rule given as plain egglog text has no samples, and cannot be checked: that is a problem too.
    """
    return Checker(rule, samples=samples, seed=seed).all()


def replay(rule: Rule, case: str, seed: int) -> list[str]:
    """The one numeric draw that a problem text names, again: `replay(rule, "holds[0]", 17)`."""
    checker = Checker(rule)
    sample = dict(checker.cases())[case]
    problem = checker.once(case, sample, seed)[1]
    return [problem] if problem else []
