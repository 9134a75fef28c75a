"""What a term is: one declaration of its operands, meaning, laws, and the ways it stands in a file.

Everything else is derived from declarations: constructors of the e-graph, shape laws, checks of operands, how nodes are
read and written, which kernels a target must have, and the names reports use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np

from ..errors import EGraphError, RuleError

TENSOR, LIST, NODE, DIM, INTS, INT, FLOAT = "T", "TL", "Nd", "Dim", "IV", "i64", "f64"
#: Sorts of operands that are e-classes; the others are attributes.
CLASSES = (TENSOR, LIST, NODE)
SORTS = frozenset((*CLASSES, DIM, INTS, INT, FLOAT))

#: What a term is for. An `input`, a tensor `stored` in the model, a `number` written in the term and the `absent`
#: operand are leaves; a `list` joins operands, an `output` takes one out of a node; no rule looks into an `opaque` one;
#: a `marker` is a stage on the way to a fused operator and never written; a `fused` operator is one reports count.
ROLES = ("input", "stored", "number", "absent", "list", "output", "opaque", "marker", "operator", "fused")


class IllFormed(EGraphError):
    """Operands that no valid model can hold."""


class Assumed(IllFormed):
    """Operands a model may hold, but that a rule may exclude by saying so in `assumes`."""


_Integer = int  # a method of NodeView hides the name


class NodeView(Protocol):
    """What a reader of a fused operator's node may ask."""

    def present(self, i: int) -> bool: ...
    def count(self) -> int: ...
    def x(self, i: int = 0) -> Any: ...
    def dims(self, i: int = 0) -> tuple[int | str, ...] | None: ...
    def is_bool(self, i: int) -> bool: ...
    def int(self, name: str, default: _Integer) -> _Integer: ...
    def float(self, name: str, default: float) -> float: ...
    def string(self, name: str, default: str) -> str: ...
    def last_axis(self, name: str, default: _Integer) -> bool: ...
    def takes(self, output: _Integer) -> bool: ...
    def only_first_output(self) -> bool: ...


#: A node as `(term name, operand, ...)`, or a list with that of each output, or None for one that nobody takes; None
#: where the node means something that the term does not.
NodeReader = Callable[[NodeView], tuple[Any, ...] | list[tuple[Any, ...] | None] | None]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a node: the operand of that name, alone in a list if `listed`, or a constant; left out where it
    equals `default`.
    """

    name: str
    operand: str = ""
    constant: int | None = None
    default: int | float | None = None
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """How a term stands in a file from operator set `since` of the default domain on, until the next form's.

    `inputs` names the operand at each position, "" where one is left out; an attribute of the term among them is
    written as an int64 tensor, and left out where it equals the number in `defaults`. `kernel` is what a target must
    have, the operator unless it runs with some options only. `indexes` are the positions that hold indices, each with
    that of the table, whether the term has them or not.
    """

    domain: str
    kind: str
    inputs: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    since: int = 1
    outputs: str = ""  # of a node: their number, or the vector operand that has an element for each
    sparing: bool = False  # an output that nobody takes is left out
    kernel: str = ""
    defaults: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    indexes: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """`domain::Kind`, or the kind alone in the default domain."""
        return f"{self.domain}::{self.kind}" if self.domain else self.kind


def form(
    kind: str, inputs: str, attributes: str = "", *, since: int = 1, outputs: str = "", kernel: str = "",
    indexes: Mapping[int, int] = MappingProxyType({}),
) -> Form:  # fmt: skip
    """A form from its texts.

    kind: "OpType" or "domain::OpType". inputs: names of operands by position, "-" for one left out, "name?1" for one
    left out where it is 1. attributes: "name", "name=operand" or "name=[operand]", with "?0" if it is left out where it
    is 0; "name:-1" for a constant. outputs: as in `Form`, with "?" if those that nobody takes are left out.
    """
    domain, _, op_type = kind.rpartition("::")
    places = [word.partition("?") for word in inputs.split()]
    return Form(
        "" if domain == "ai.onnx" else domain, op_type, tuple(name.replace("-", "") for name, _, _ in places),
        tuple(_attribute(word) for word in attributes.split()), since, outputs.rstrip("?"), outputs.endswith("?"),
        kernel or op_type, MappingProxyType({name: int(default) for name, _, default in places if default}), indexes,
    )  # fmt: skip


def _attribute(word: str) -> Attribute:
    if ":" in word:
        name, _, constant = word.partition(":")
        return Attribute(name, constant=int(constant))
    text, _, default = word.partition("?")
    name, _, operand = text.partition("=")
    return Attribute(
        name, operand.strip("[]") or name, default=float(default) if default else None, listed=operand.startswith("["),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Op:
    """One kind of term."""

    name: str
    operands: tuple[tuple[str, str], ...]  # (name, sort) in order
    numpy: Callable[..., Any] | None  # its meaning on arrays and plain numbers; None for what the file alone says
    out: str = TENSOR
    shape: str = ""  # a law of facts.py; "" for none
    dtype: str = "first"  # "first", "second", "list": of that operand; "cast": an attribute; "bool", "int64"; "": none
    role: str = "operator"
    commutative: bool = False
    same: tuple[str, ...] = ()  # operands that share one element type
    floating: bool = False  # what the first operand's type must be
    boolean: bool = False
    requires: Callable[..., None] | None = field(default=None, compare=False)  # raises IllFormed, or Assumed
    moves: tuple[str, ...] = ()  # operands whose elements it has, as they are
    layout: bool = False  # it has those of the first operand, each once
    carries: bool = False  # or not once, but what facts tell of all of them is told of the result as well
    exact: bool = False  # integers and IEEE 754 fix its result to the bit
    folds: bool = False  # of constants of one element, it is computed as the model is read
    odd: bool = False  # of the negated operand, it is its negative
    positive: bool = False  # of integers, only where the second one is above 0
    weights: tuple[str, ...] = ()  # operands that a model trains
    #: Operands it norms itself, each with the weight of its norm and the attribute that has its number of heads.
    norms: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    scales: bool = False  # one operand scales the other: a number, or a vector of one, leaves it its sizes
    masked: bool = False  # a number added to its operand may be a mask: low enough, nothing of the element is left
    single: bool = False  # it computes in float32 at most, so no double may be
    common: bool = False  # a marker that many graphs hold without any fused operator in sight
    symbolic: str = ""  # its meaning in proving/meaning.py, if numpy's reads numbers out of tensors
    plain: str = ""  # the term that its node is read as, where no rule is to look at this one
    short: str = ""  # its name in algebra
    infix: tuple[str, int] | None = None  # its sign there, and how strongly that binds
    implied: bool = False  # there, a last operand of -1 goes without saying
    forms: tuple[Form, ...] = field(default=(), compare=False)  # how it is written, oldest first
    reads: Mapping[str, NodeReader] = field(default_factory=lambda: MappingProxyType({}), compare=False)  # by ONNX kind
    doc: str = field(default="", compare=False)
    sorts: tuple[str, ...] = field(init=False, compare=False, repr=False)  # of its operands

    def __post_init__(self) -> None:
        object.__setattr__(self, "sorts", tuple(sort for _, sort in self.operands))  # asked for at each e-node

    def with_sorts(self, operands: Sequence[Any]) -> Iterator[tuple[Any, str]]:
        """Each operand with its sort."""
        return zip(operands, self.sorts, strict=True)

    def parted(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The operands that are e-classes, and the attributes."""
        parts: tuple[list[Any], list[Any]] = [], []
        for operand, sort in self.with_sorts(operands):
            parts[sort not in CLASSES].append(operand)
        return parts

    def joined(self, children: Iterable[Any], attributes: Iterable[Any]) -> list[Any]:
        """All operands in order, from the two parts that an e-node has; None for a dimension, which is in neither."""
        children, attributes = iter(children), iter(attributes)
        return [next(children) if s in CLASSES else None if s == DIM else next(attributes) for s in self.sorts]

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """(name, sort) of the operands that are no e-classes."""
        return tuple((name, sort) for name, sort in self.operands if sort not in CLASSES)

    @property
    def constants(self) -> dict[str, Any]:
        """Attributes of its newest form that it need not name."""
        return {a.name: a.constant for f in self.forms[-1:] for a in f.attributes if not a.operand}

    @property
    def attends(self) -> bool:
        """It is an operator for attention, which takes an additive mask."""
        return bool(self.forms) and {"q", "k", "v"} <= {name for name, _ in self.operands}

    @property
    def marker(self) -> bool:
        return self.role == "marker"

    @property
    def title(self) -> str:
        """What reports call it: the operator of its newest form."""
        return self.forms[-1].kind if self.forms else self.name

    @property
    def oldest(self) -> int:
        """The first operator set of the default domain in which it can be written."""
        return min((f.since for f in self.forms), default=1)

    def form(self, opset: int) -> Form:
        """The form of that operator set. Raises RuleError if there is none."""
        found = [f for f in self.forms if f.since <= opset]
        if not found:
            raise RuleError(f"the term {self.name} cannot be written in operator set {opset}")
        return found[-1]


def array(x: Any) -> np.ndarray:
    """A number of numpy's as an array of rank 0; arrays, and what stands for arrays in proofs, stay what they are."""
    return cast(np.ndarray, np.asarray(x) if isinstance(x, np.generic) else x)


def refusing(wrong: Callable[..., bool], why: str) -> Callable[..., None]:
    """For `Op.requires`: raises IllFormed where `wrong` is true of the operands."""

    def check(*operands: Any) -> None:
        if wrong(*operands):
            raise IllFormed(why)

    return check


def signature(text: str) -> tuple[tuple[str, str], ...]:
    """'x y:i64' -> (('x', 'T'), ('y', 'i64')): operands are tensors unless a sort is given."""
    return tuple((w.split(":")[0], w.split(":")[1] if ":" in w else TENSOR) for w in text.split())


def declare(
    name: str, operands: str, numpy: Callable[..., Any] | None, shape: str = "", *, forms: tuple[Form, ...] = (),
    role: str = "operator", same: str = "", weights: str = "", moves: str = "", **more: Any,
) -> Op:  # fmt: skip
    """A declaration. An operator without `forms` is written as the node of its name, tensors and lists as inputs and
    the rest as attributes. Raises RuleError where a form names no operand.
    """
    sorted_operands = signature(operands)
    if not forms and role in ("operator", "fused"):
        inputs = " ".join(n for n, sort in sorted_operands if sort in CLASSES)
        forms = (form(name, inputs, " ".join(n for n, sort in sorted_operands if sort not in CLASSES)),)
    named = {"same": same, "weights": weights, "moves": moves}
    more |= {trait: tuple(words.split()) for trait, words in named.items()}
    op = Op(name, sorted_operands, numpy, shape=shape, role=role, forms=forms, **more)
    names = {n for n, _ in op.operands}
    if role not in ROLES:
        raise RuleError(f"term {name}: no role is named {role!r}; there are {', '.join(ROLES)}")
    if wrong := {sort for _, sort in op.operands} - SORTS:
        raise RuleError(f"term {name}: no sort is named {sorted(wrong)[0]!r}; there are {', '.join(sorted(SORTS))}")
    if wrong := {word for words in (op.same, op.weights, op.moves) for word in words if isinstance(word, str)} - names:
        raise RuleError(f"term {name} has no operand {sorted(wrong)[0]!r}; it has {', '.join(sorted(names))}")
    for f in op.forms:
        asked = {n for n in f.inputs if n} | {a.operand for a in f.attributes if a.operand}
        if asked - names or (role == "fused" and names - asked):
            raise RuleError(f"term {name}: its form {f.name} and its operands differ in {sorted(asked ^ names)}")
    return op
