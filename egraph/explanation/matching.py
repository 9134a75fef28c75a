"""Where a rule's left side matches in a frozen e-graph, in Python: for showing a rewrite, not for running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..engine.frozen import Row
from ..engine.rule import Rule, Sides
from ..terms import CLASSES
from ..terms.expression import Expr
from .notation import Notation, attribute

Env = dict[str, Any]  # tensor, list and node variables: classes; others: numbers and tuples

_LIMIT = 200


def instance(rule: Rule, number: int, why: Mapping[int, set[int]], notation: Notation) -> tuple[str, str] | None:
    """(left, right) of the smallest match whose right side is a member of the same class; None if there is none."""
    found: list[tuple[bool, int, str, str]] = []
    for cls in sorted(c for c, by in why.items() if number in by):
        for s in rule.sides:
            for k, matched in enumerate(_match(s.lhs, cls, {}, notation)):
                if k == _LIMIT:
                    break
                env = _bound(s, matched, notation)
                if env is None:
                    continue
                made = _class(s.rhs, env, notation)
                left, right = show(s.lhs, env, notation), show(s.rhs, env, notation)
                if made in (cls, None) and left != right:
                    found.append((made is None, len(left), left, right))
    return min(found)[2:] if found else None


def _match(e: Expr, cls: int, env: Env, notation: Notation) -> Iterator[Env]:
    if e.head == "var":
        name = str(e.args[0])
        if env.get(name, cls) == cls:
            yield {**env, name: cls}
        return
    for row in notation.rows.get(cls, ()):
        if row.op == e.head:
            for children in orders(e, row):
                yield from _operands(e, 0, notation.ops[row.op].joined(children, row.attrs), env, notation)


def orders(e: Expr, row: Row) -> list[tuple[int, ...]]:
    """The orders in which the operands of a pattern may be those of a row."""
    turned = e.op is not None and e.op.commutative and row.children[0] != row.children[1]
    return [row.children, row.children[::-1]] if turned else [row.children]


def value_of(e: Expr, env: Env) -> Any:
    """An attribute of a pattern as a number or tuple; None if a guard has yet to bind it, or it is a dimension."""
    if e.head in ("dim", "elem") or not e.variables() <= env.keys():
        return None
    if any(isinstance(a, Expr) and a.head in ("dim", "elem") for a in e.args):
        return None
    try:
        return e.value(env)
    except (IndexError, ZeroDivisionError):  # of another match: a shorter permutation, say
        return None


def _operands(e: Expr, i: int, values: list[Any], env: Env, notation: Notation) -> Iterator[Env]:
    if i == len(values):
        yield env
        return
    a, value = e.args[i], values[i]
    if a.sort in CLASSES:
        for bound in _match(a, value, env, notation):
            yield from _operands(e, i + 1, values, bound, notation)
        return
    if a.head == "var":
        if env.get(a.args[0], value) == value:
            yield from _operands(e, i + 1, values, {**env, a.args[0]: value}, notation)
        return
    known = value_of(a, env)
    if known is not None and known != value:
        return
    yield from _operands(e, i + 1, values, env, notation)


def _class(e: Expr, env: Env, notation: Notation) -> int | None:
    """The class of an instantiated term; None if it cannot be told."""
    if e.head == "var":
        return env.get(str(e.args[0]))
    assert e.op is not None
    values = [_class(a, env, notation) if a.sort in CLASSES else value_of(a, env) for a in e.args]
    children, attrs = e.op.parted(values)
    return None if None in values else notation.lookup.get((e.head, tuple(children), tuple(attrs)))


def _bound(s: Sides, env: Env, notation: Notation) -> Env | None:
    """The match with the numbers its guards bind; None if a guard on the facts of a variable contradicts it."""
    env, frozen = dict(env), notation.frozen
    of_class = {"fval": frozen.number, "rank": frozen.rank, "dtype": frozen.dtype}
    for asked, wanted in (f.args for g in s.when for f in g.facts if f.head == "="):
        sized = asked.head == "dim" and wanted.head == "DNum" and asked.args[1].head == "lit"
        number = wanted.args[0] if sized else wanted
        if not (sized or asked.head in of_class) or asked.args[0].head != "var" or number.head not in ("var", "lit"):
            continue
        cls = env.get(asked.args[0].args[0])
        if cls is None:
            continue
        if sized:
            shape, at = frozen.shape(cls), asked.args[1].args[0]
            known = shape[at] if shape is not None and -len(shape) <= at else None
        else:
            known = of_class[asked.head].get(cls)
        if known is None:
            if sized:
                continue
            return None
        held = number.args[0] if number.head == "lit" else env.get(number.args[0])
        if held is None:
            env[number.args[0]] = known
        elif isinstance(known, int | float) and float(held) != float(known):
            return None
    return env


def show(e: Expr, env: Env, notation: Notation, binds: int = 0) -> str:
    """A pattern with its variables replaced by what they matched."""
    if e.head == "var":
        name = str(e.args[0])
        if e.sort in CLASSES:
            return notation.within(env[name], binds) if name in env else name
        return attribute(env.get(name, name))
    if e.head == "lit":
        return attribute(e.args[0])
    if e.op is None:
        return _number(e, env, notation)
    return notation.compose(e.head, e.args, lambda a, strength: show(a, env, notation, strength), binds,
                            lambda a: _items(a, env, notation))  # fmt: skip


def _items(e: Expr, env: Env, notation: Notation) -> list[str]:
    if e.head == "Cons":
        return [show(e.args[0], env, notation), *_items(e.args[1], env, notation)]
    return [] if e.head == "Nil" else notation.items(env[str(e.args[0])]) if str(e.args[0]) in env else [".."]


def _number(e: Expr, env: Env, notation: Notation) -> str:
    """Arithmetic on attributes, and dimensions."""
    value = value_of(e, env)
    if value is not None:
        return attribute(value)
    texts = [show(a, env, notation) for a in e.args]
    if e.head == "DNum":
        return texts[0]
    if e.head in ("vec-of", "vec-empty"):
        return f"[{', '.join(texts)}]"
    return f"{texts[0]}{e.head}{texts[1]}" if e.head in "+-*/%" else f"{e.head}({', '.join(texts)})"
