"""Samples of a rule: the text of `holds` and `refuse` entries, and how arrays are drawn from it.

A sample gives one text per tensor variable, and numbers or tuples for the attribute variables that no guard
binds:

    "b n s 2h"       shape; a letter is one number in the whole sample, "2h" is twice it, "b*n" a product,
                     "t+1" one more
    "" / "b s:int64" rank 0; element type after a colon (default float32)
    "positive b s"   values above zero, known to be so
    "squares b s"    values of zero and above, known to be so
    "truths b s"     zeros and ones, known to be so
    "=1e-6"          a constant of rank 0 with this value; "=2:1" of shape [1], "=1:1 1 1", "=2:float16"
    "ints b s 2h"    the constant int64 vector of these numbers
    "ids 5 b s"      int64 indices in [0, 5), of shape [b, s]
    "ids= 1 2 3"     the constant int64 vector 1, 2, 3
    "causal 3 3"     a constant mask that hides all columns after the row's own
    "hiding b 1 s t" a mask whose first row is -inf throughout
    "lowest b 1 s t" a mask whose first row is the lowest number throughout
    "doubled0 5 2h"  a constant whose last axis is cat(t, t); "doubled1": every element twice; "signed0", "signed1":
                     with the first of each pair negated
    "turn0 4 4"      a matrix that turns pairs by halves, "turn1" interleaved ones; "back0", "back1" backwards
    "absent"         no tensor at all, where an operator may go without one

A capital letter is a symbol in the e-graph, never a number. The sample gives the numbers it stands for, as in
K=(1, 3): the first ones of all capitals go together, then the second ones.

An attribute variable with the name of a letter is that number, where nothing else binds it. A variable of
sort list is a list of the tensors that a text such as "h 3, h 5" gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..errors import RuleError
from ..terms import FLOAT, INTS, LIST, TENSOR


class Token(NamedTuple):
    """A size: a factor times letters plus a number; without letters the factor itself."""

    factor: int
    letters: str = ""
    plus: int = 0


_ZERO = Token(0)
_WORD = re.compile(r"(?:(\d+)\*?)?([a-zA-Z](?:\*[a-zA-Z])*)(?:\+(\d+))?|(-?\d+)")
#: Constants that repeat themselves: how they pair their elements, and the sign of the first ones.
REPEATED: Mapping[str, tuple[int, int]] = MappingProxyType({
    "doubled0": (0, 1), "doubled1": (1, 1), "signed0": (0, -1), "signed1": (1, -1),
})  # fmt: skip
#: Matrices that turn pairs: how those are paired, and the sign of the turn.
TURNS: Mapping[str, tuple[int, int]] = MappingProxyType({
    "turn0": (0, 1), "turn1": (1, 1), "back0": (0, -1), "back1": (1, -1),
})  # fmt: skip
_KINDS = ("positive", "squares", "truths", "ints", "ids=", "ids", *REPEATED, *TURNS, "causal", "hiding", "lowest")
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)
#: A float64 whose square is infinite.
_HUGE = 1e200


@dataclass(frozen=True, slots=True)
class Spec:
    """What one tensor variable of a sample is. `kind`: normal, const or a word of the language."""

    kind: str
    dims: tuple[Token, ...]
    dtype: str
    value: float = 0.0
    high: Token = _ZERO

    @property
    def constant(self) -> bool:
        return self.kind in ("const", "ints", "ids=", *REPEATED, *TURNS, "causal")


def parse(text: str) -> Spec:
    """One entry of a sample. Raises RuleError for a word that is not in the language."""
    body, *after = (part.strip() for part in text.split(":"))
    if body == "absent":
        return Spec("absent", (), "float32")
    if body.startswith("="):
        dtypes = [p for p in after if p[:1].isalpha()]
        shapes = [p for p in after if not p[:1].isalpha()]
        dims = _tokens(shapes[0]) if shapes else ()
        return Spec("const", dims, dtypes[0] if dtypes else "float32", float(body[1:]))
    first, _, rest = body.partition(" ")
    kind = first if first in _KINDS else "normal"
    tokens = _tokens(rest if kind != "normal" else body)
    if kind in ("ints", "ids="):
        return Spec(kind, tokens, "int64")
    if kind == "ids":
        return Spec(kind, tokens[1:], "int64", high=tokens[0])
    return Spec(kind, tokens, after[0] if after else "float32")


def _tokens(text: str) -> tuple[Token, ...]:
    found: list[Token] = []
    for word in text.split():
        m = _WORD.fullmatch(word)
        if m is None:
            raise RuleError(
                f"{word!r} in the sample {text!r} is no dimension: write a number, a letter, 2h, b*n or t+1"
            )
        found.append(Token(int(m[4])) if m[4] else Token(int(m[1] or 1), m[2].replace("*", ""), int(m[3] or 0)))
    return tuple(found)


class Sample:
    """A parsed entry of `holds` or `refuse`."""

    def __init__(self, entry: Mapping[str, Any], sorts: Mapping[str, str]) -> None:
        self.symbols = {a: tuple(v) for a, v in entry.items() if len(a) == 1 and a.isupper() and a not in sorts}
        entry = {a: v for a, v in entry.items() if a not in self.symbols}
        unknown = set(entry) - set(sorts)
        self.attributes: dict[str, Any] = {}
        self.tensors: dict[str, Spec] = {}
        self.lists = {n for n, s in sorts.items() if s == LIST}
        if unknown:
            raise RuleError(f"the sample names {sorted(unknown)[0]!r}, which is no variable of the rule")
        for name, given in entry.items():
            if sorts[name] in (TENSOR, LIST):
                for k, text in enumerate(given.split(",") if sorts[name] == LIST else [given]):
                    self.tensors[name if not k else f"{name}.{k}"] = parse(text)
            else:
                self.attributes[name] = tuple(given) if isinstance(given, list | tuple) else given
        missing = {n for n, s in sorts.items() if s in (TENSOR, LIST)} - set(self.tensors)
        if missing:
            raise RuleError(f"the sample gives no shape for {sorted(missing)[0]!r}")
        self.letters = tuple(sorted({c for t in self._all_tokens() for c in t.letters}))
        counts = {len(self.symbols.get(c, ())) for c in self.letters if c.isupper()}
        if len(counts) > 1 or counts & {0, 1}:
            raise RuleError("the sample gives two or more numbers, as many for each, to the capital letters it uses")
        self.numbers = {t.factor for t in self._all_tokens() if not t.letters}

    def _all_tokens(self) -> Iterator[Token]:
        for spec in self.tensors.values():
            yield from spec.dims
            yield spec.high

    def fixed(self, reading: int = 0) -> dict[str, int]:
        """Letters whose number the sample gives: as an attribute of the same name, or capitals."""
        given = {a: v for a, v in self.attributes.items() if a in self.letters and isinstance(v, int)}
        return given | {c: v[reading] for c, v in self.symbols.items()}

    def twin(self, letters: Mapping[str, int]) -> dict[str, int]:
        """The same letters, the capitals another number: what differs is a symbol in the e-graph."""
        return {**letters, **{c: v[1] for c, v in self.symbols.items()}}

    def distinct(self, first: int = 0) -> dict[str, int]:
        """A different prime for each letter, none of them a number of the sample."""
        primes = [p for p in (2, 3, 5, 7, 11, 13, 17, 19, 23) if p not in self.numbers]
        rest = [c for c in self.letters if c not in self.fixed()]
        return {**dict(zip(rest, primes[first:], strict=False)), **self.fixed()}

    def random(self, rng: np.random.Generator, sizes: Sequence[int] = (1, 2, 3, 5)) -> dict[str, int]:
        """Independent numbers for the letters: ones and coincidences are wanted."""
        count = min((len(v) for v in self.symbols.values()), default=1)
        reading = int(rng.integers(count)) if count > 1 else 0
        return {c: int(rng.choice(sizes)) for c in self.letters} | self.fixed(reading)


@dataclass(slots=True)
class Drawn:
    """Arrays and attributes for the variables of a rule."""

    env: dict[str, Any]
    specs: dict[str, Spec]
    letters: dict[str, int]

    def __str__(self) -> str:
        parts = []
        for name, value in self.env.items():
            if isinstance(value, list):
                value = value[0]
            if isinstance(value, np.ndarray):
                flat = f"={value.reshape(-1).tolist()}" if self.specs[name].constant and value.size < 9 else ""
                parts.append(f"{name}{flat}: {value.dtype}{list(value.shape)}")
            else:
                parts.append(f"{name}={value}")
        return ", ".join(parts)


def number(token: Token, letters: Mapping[str, int]) -> int:
    return token.factor * math.prod(letters[c] for c in token.letters) + token.plus


def draw(
    sample: Sample, letters: Mapping[str, int], rng: np.random.Generator, *, scale: float = 1.0,
    special: str = "", specs: Mapping[str, Spec] | None = None,
) -> Drawn:  # fmt: skip
    """Arrays of the sample. What `special` mixes in:

    "all"       NaN, infinities, zeros, subnormals, the largest number and extreme integers, into every tensor
    "few"       NaN, infinities, zeros or subnormals: a few elements of some tensors, so that most rows have none
    "overflow"  numbers whose products are infinite, in float64: there is no wider type to compute them in
    """
    chosen = dict(specs or sample.tensors)
    if special == "overflow":
        chosen = {n: replace(s, dtype="float64") if s.dtype.startswith("float") else s for n, s in chosen.items()}
    env: dict[str, Any] = {}
    for name, spec in chosen.items():
        array = _array(spec, letters, rng, scale, special)
        env[name] = [array] if name in sample.lists else array
        if (head := name.partition(".")[0]) != name:  # a further tensor of a list
            env[name] = array
            env[head].append(array)
    env.update(sample.attributes)
    return Drawn(env, chosen, dict(letters))


def _array(spec: Spec, letters: Mapping[str, int], rng: np.random.Generator, scale: float, special: str) -> Any:
    if spec.kind == "absent":
        return None
    shape = tuple(number(t, letters) for t in spec.dims)
    if spec.kind in ("ints", "ids="):
        return np.asarray(shape, np.int64)
    if spec.kind == "ids":
        return rng.integers(0, number(spec.high, letters), shape)
    if spec.kind == "causal":
        return np.triu(np.full(shape, np.finfo(spec.dtype).min), 1).astype(spec.dtype)
    if spec.kind == "const":
        with np.errstate(all="ignore"):  # below what float16 holds: -inf
            return np.full(shape, spec.value, spec.dtype)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b" or spec.kind == "truths":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = rng.integers(max(-9, info.min), 10, shape).astype(dtype)
        return _put(values, (info.min, info.max), rng) if special == "all" else values
    x = np.asarray(rng.standard_normal(shape) * scale)
    if spec.kind in ("positive", "squares"):
        x = np.asarray(np.abs(x) + np.finfo(np.float16).tiny)
    if spec.kind in REPEATED and shape and shape[-1] % 2 == 0:
        (pairs, sign), half = REPEATED[spec.kind], x[..., : shape[-1] // 2]
        both = np.stack([sign * half, half], axis=-1 if pairs else -2)
        x = both.reshape(shape)
    elif spec.kind in TURNS and len(shape) == 2 and shape[0] == shape[1] and shape[0] % 2 == 0:
        (pairs, sign), places = TURNS[spec.kind], np.arange(shape[0])
        first, second = (places[::2], places[1::2]) if pairs else np.split(places, 2)
        x = np.zeros(shape)
        x[second, first], x[first, second] = -sign, sign
    elif spec.kind in ("hiding", "lowest"):
        x[..., :1, :] = -np.inf if spec.kind == "hiding" else np.finfo(dtype).min
    elif special and spec.kind in ("normal", "positive", "squares"):
        x, tiny = x.astype(dtype), float(np.finfo(dtype).smallest_subnormal)
        if special == "all":
            return _put(x, _fitting((*_SPECIAL, tiny, float(np.finfo(dtype).max)), spec.kind), rng)
        chosen = (*_SPECIAL, tiny) if special == "few" else (_HUGE, -_HUGE)
        fit = _fitting(tuple(rng.permutation(chosen)), spec.kind)
        return _put(x, fit, rng, int(rng.integers(1, 3 + x.size // 8)) if rng.random() < 0.7 else 0)
    return x.astype(dtype)


def _fitting(values: Sequence[float], kind: str) -> list[float]:
    """Those that an array of that kind may hold."""
    if kind == "normal":
        return list(values)
    return [v for v in values if np.isnan(v) or v > 0 or (kind == "squares" and v == 0 and not np.signbit(v))]


def _put(x: np.ndarray, values: Sequence[float], rng: np.random.Generator, count: int = -1) -> np.ndarray:
    """x with `count` of its elements replaced by the given values, about half of them if that is -1."""
    flat = x.reshape(-1).copy()
    where = rng.permutation(flat.size)[: (flat.size + 1) // 2 if count < 0 else count]
    flat[where] = np.resize(np.asarray(values, x.dtype), where.size)
    return flat.reshape(x.shape)


#: What an integer attribute may be, by the name of the operand; if it is not listed, most small integers.
_VALUES: Mapping[str, tuple[int, ...]] = MappingProxyType({
    "pairs": (0, 1), "layout": (0, 1), "keep": (0, 1), "sign": (1, -1), "guard": (-1, 0, 1, 2), "to": (1, 6, 7, 10, 11),
    "axis": (-4, -3, -2, -1),
})  # fmt: skip


def vary(
    sample: Sample, letters: Mapping[str, int], name: str, sort: str, operand: str, rng: np.random.Generator
) -> Any:
    """Another value that an attribute of this sort may have, which is that operand of a term."""
    value = sample.attributes[name]
    if sort == INTS:
        return tuple(map(int, rng.permutation(value) if rng.random() < 0.5 else np.add(value, rng.integers(-2, 3))))
    if sort == FLOAT:
        return float(rng.choice([2 * value, value / 2, value + 0.25, 0.0]))
    sizes = {number(t, letters) for spec in sample.tensors.values() for t in spec.dims}
    return int(rng.choice(_VALUES.get(operand, (*range(-2, 4), value + 1, value - 1, *sorted(sizes)))))


def disturb(sample: Sample, letters: Mapping[str, int], rng: np.random.Generator) -> dict[str, Spec]:
    """The sample's tensors with one or two of them changed: a size, the rank, a constant; or all types."""
    specs = dict(sample.tensors)
    if rng.random() < 0.15:
        masked = any(s.kind == "causal" for s in specs.values())
        kind = str(rng.choice(["float16", "float32", "float64", *([] if masked else ["int64", "int32"])]))
        return {n: replace(s, dtype=kind) if s.dtype.startswith("float") else s for n, s in specs.items()}
    for name in rng.choice(list(specs), size=min(len(specs), int(rng.integers(1, 3))), replace=False):
        specs[name] = _disturbed(specs[name], letters, rng)
    return specs


def _disturbed(spec: Spec, letters: Mapping[str, int], rng: np.random.Generator) -> Spec:
    dims = [Token(number(t, letters)) for t in spec.dims]
    if spec.kind == "const":
        if rng.random() < 0.5:
            return replace(spec, value=spec.value * float(rng.choice([-1.0, 0.5, 1.25, 2.0])))
        return replace(spec, dims=(Token(1),) * int(rng.integers(0, 5)))
    some = [1, 2, 3, *letters.values(), *(t.factor for t in dims)]
    kind = int(rng.integers(0, 6))
    if kind == 0 and dims:
        return replace(spec, dims=tuple(dims[1:]))
    if kind == 1:
        return replace(spec, dims=(Token(int(rng.choice(some))), *dims))
    if kind == 2 and len(dims) > 1:
        return replace(spec, dims=tuple(dims[i] for i in rng.permutation(len(dims))))
    if dims:
        dims[int(rng.integers(0, len(dims)))] = Token(int(rng.choice(some)))
    return replace(spec, dims=tuple(dims))
