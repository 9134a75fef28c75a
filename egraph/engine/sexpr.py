"""Rules written as plain egglog text: parsed, given a place for the ruleset and for a mark, and printed again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TypeAlias

from ..errors import RuleError

Form: TypeAlias = "str | list[Form]"

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()]|[^\s()"]+')
_RULESET, _MARK = "{ruleset}", "{mark}"


def parse(text: str) -> list[Form]:
    """The top-level forms; comments are dropped. Raises RuleError for unbalanced parentheses."""
    stack: list[list[Form]] = [[]]
    for line in text.splitlines():
        for token in _TOKEN.findall(line.split(";")[0]):
            if token == "(":
                stack.append([])
            elif token == ")" and len(stack) > 1:
                done = stack.pop()
                stack[-1].append(done)
            elif token == ")":
                raise RuleError("unbalanced parentheses in egglog rule text")
            else:
                stack[-1].append(token)
    if len(stack) != 1:
        raise RuleError("unbalanced parentheses in egglog rule text")
    return stack[0]


def show(form: Form) -> str:
    return form if isinstance(form, str) else f"({' '.join(map(show, form))})"


def compile_text(text: str, name: str, stages: Collection[str]) -> str:
    """One line per form. `rewrite`s become rules that also say where they matched, and a stage that a form names is
    made a part of the name of its ruleset; see `placed`.
    """
    forms = [rule for form in parse(text) for rule in _rules(form)]
    several = sum(isinstance(f, list) and f[:1] == ["rule"] for f in forms) > 1
    lines, number = [], 0
    for form in forms:
        if isinstance(form, list) and form[:1] == ["rule"]:
            title = f"{name}#{number}" if several else name
            named = [] if ":name" in form else [":name", f'"{title}"']
            own = [f"{_RULESET}-{part}" if part in stages else part for part in form[3:]]
            where = [] if ":ruleset" in form else [":ruleset", _RULESET]
            lines.append(show([*form[:3], *own, *named, *where]))
            number += 1
        else:
            lines.append(show(form))
    return "\n".join(lines)


def title(text: str) -> tuple[str, str]:
    """(name, law) as the first comments say. Raises RuleError if one is missing."""
    name, law = re.search(r"^\s*;\s*name:\s*(\S+)", text, re.M), re.search(r"^\s*;\s*law:\s*(.+)$", text, re.M)
    if not name or not law:
        raise RuleError("an egglog rule file starts with '; name: kebab-case' and '; law: one line of algebra'")
    return name[1], law[1].strip()


def placed(program: str, ruleset: str, mark: str, relation: str = "union") -> str:
    """The program for a ruleset. `mark` is an action for each match, on `$root`. A form that names a stage is placed in
    a ruleset of both names, as in `ruleset-marker`.

    With a `relation`, what a rule joins first is entered into that instead, nothing is subsumed, and no stage is told
    apart.
    """

    def place(part: Form) -> Form:
        if not isinstance(part, str) or not part.startswith(_RULESET):
            return part
        return part.replace(_RULESET, ruleset) if relation == "union" else ruleset

    lines = []
    for form in parse(program):
        if isinstance(form, list) and form[:1] == ["rule"] and isinstance(form[2], list):
            union, actions = _union(form[2]), list[Form]()
            for a in form[2]:
                if union and a == _MARK:
                    actions.append(mark.replace("$root", show(union[1])))
                elif a is union:
                    actions.append([relation, *union[1:]])
                elif relation == "union" or not isinstance(a, list) or a[:1] != ["subsume"]:
                    actions.append(a)
            form = [form[0], form[1], actions, *map(place, form[3:])]
        lines.append(show(form))
    return "\n".join(lines)


def stages(program: str) -> list[str]:
    """The stages that forms name."""
    found = (part for form in parse(program) for part in form if isinstance(part, str))
    return sorted({part.removeprefix(f"{_RULESET}-") for part in found if part.startswith(f"{_RULESET}-")})


def strings(program: str, head: str) -> set[str]:
    """The strings that forms of this head begin with."""
    found = (form[1] for form in _forms(parse(program)) if form[0] == head and len(form) > 1)
    return {text[1:-1] for text in found if isinstance(text, str) and text.startswith('"')}


def heads(program: str, known: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The known constructors in the facts of the rules, and those in their actions."""
    facts: set[str] = set()
    actions: set[str] = set()
    for form in parse(program):
        if isinstance(form, list) and form[:1] == ["rule"] and len(form) > 2:
            facts.update(h for h in symbols(form[1]) if h in known)
            actions.update(h for h in symbols(form[2]) if h in known)
    return frozenset(facts), frozenset(actions)


def _rules(form: Form) -> Iterator[Form]:
    """A form with its rewrites as rules."""
    if not isinstance(form, list) or not form or form[0] not in ("rule", "rewrite", "birewrite"):
        yield form
        return
    if len(form) < 3:
        raise RuleError(f"egglog form {show(form)} has too few parts")
    if form[0] == "rule":
        facts, actions, *options = form[1:]
        if not isinstance(actions, list):
            raise RuleError(f"egglog form {show(form)} has no list of actions")
        yield ["rule", facts, [*actions, *([_MARK] if _union(actions) else [])], *options]
        return
    left, right, *options = form[1:]
    when: Form = []
    ruleset: list[Form] = []
    if ":ruleset" in options:
        at = options.index(":ruleset")
        ruleset, options = options[at : at + 2], options[:at] + options[at + 2 :]
    if ":when" in options:
        at = options.index(":when")
        when = options[at + 1] if at + 1 < len(options) else "missing"
        options = options[:at] + options[at + 2 :]
    if options or not isinstance(when, list):
        raise RuleError(
            f"egglog form {show(form)}: of the options of a rewrite, only :when (facts) and :ruleset are read here"
        )
    for a, b in ((left, right), (right, left)) if form[0] == "birewrite" else ((left, right),):
        yield ["rule", [["=", "_root", a], *when], [["union", "_root", b], _MARK], *ruleset]


def _union(actions: list[Form]) -> list[Form]:
    """The first union among a rule's actions; empty if there is none."""
    return next((a for a in actions if isinstance(a, list) and a[:1] == ["union"]), [])


def _forms(form: Form) -> Iterator[list[Form]]:
    """Every form in it that is not empty, itself included."""
    if isinstance(form, list) and form:
        yield form
        for part in form:
            yield from _forms(part)


def symbols(form: Form) -> Iterator[str]:
    """Every symbol in head position."""
    return (inner[0] for inner in _forms(form) if isinstance(inner[0], str))
