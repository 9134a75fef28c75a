"""Facts of terms as an egglog program: sorts, constructors, and the laws that derive dtype, rank, dims and elements.

The reader seeds the facts of every value of the model; these laws only have to serve the terms that rules create, and
they never contradict a seed unless a rule is false: then egglog refuses the merge and `saturate.py` names the rule.
Dimensions are indexed from the end; `sizes` is all of them. `elem` gives the elements of small integer tensors as
dimensions. `spread` is no value but a shape: what two tensors broadcast to. `extent` is the length of the tensors of a
list together, along an axis that a Concat asks for. A law of one dimension joins far faster than one of three: that is
what both are for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..errors import RuleError
from ..terms import LIST, NODE, OPS, TENSOR, Op
from ..terms.dtypes import BOOL, FLOAT32, INT64, masking
from . import bounds, groups, masks
from .fact import FACTS
from .guard import RANKS
from .masks import Law
from .sexpr import parse, symbols

MAX_RANK = 8
#: Operands of a Concat up to which its size is summed: each takes a round of its own.
_MANY = 8

_DECLARED = "\n".join(
    f"(function {name} ({f.operands}) {f.value} {f':merge {f.merge}' if f.merge else ':no-merge'})"
    if f.value
    else f"(relation {name} ({f.operands}))"
    for name, f in FACTS.items()
)
_SIZES = "\n".join(f"(constructor sizes-{n} ({'Dim ' * n}) Sizes)" for n in range(RANKS + 1))
HEADER = f"""
(sort T) (sort TL) (sort Nd) (sort Dim) (sort Sizes) (sort IV (Vec i64))
(constructor V (i64) T :unextractable)
(constructor VL (i64) TL :unextractable)
(constructor VN (i64) Nd :unextractable)
(constructor DNum (i64) Dim)
(constructor DSym (i64) Dim)
(function iv (i64) IV :no-merge)
{_DECLARED}
(constructor dim (T i64) Dim :unextractable)
(constructor elem (T i64) Dim :unextractable)
(constructor sizes (T) Sizes :unextractable)
{_SIZES}
(constructor spread (T T) T :unextractable)
(function vector (String) IV :no-merge)
(relation along (TL i64 i64))
(function extent (TL i64) i64 :no-merge)
{masks.RELATIONS}
{bounds.HEADER}
{groups.RELATIONS}
(relation source (Dim T i64))
(relation idx (i64))
(relation why (T i64))
(DNum 1)
(ruleset lower) (ruleset facts)
{" ".join(f"(idx {i})" for i in range(MAX_RANK))}
"""


def prelude(extra: Iterable[Op] = (), reached: Collection[str] | None = None) -> str:
    """The program every e-graph starts with; `extra` are terms declared by the caller's rules.

    With `reached`, laws of terms that are not among these are left out.
    """
    ops = [*OPS.values(), *extra]
    lines = [HEADER]
    for op in ops:
        cost = " :unextractable" if op.marker else ""
        lines.append(f"(constructor {op.name} ({' '.join(op.sorts)}) {op.out}{cost})")
        if op.commutative:
            lines.append(f"(relation sym-{op.name} (T T T))")
            lines.append(
                f"(rule ((= o ({op.name} x y))) ((sym-{op.name} o x y) (sym-{op.name} o y x))"
                f' :ruleset facts :name "sym-{op.name}")'
            )
    known = {op.name for op in ops}
    absent = set() if reached is None else known - set(reached)
    laws = [*(law for op in ops if op.name not in absent for law in _laws(op)), *_general()]
    lines += [
        f'(rule ({body}) ({action}) :ruleset facts :name "{name}")'
        for name, body, action in laws
        if not absent or absent.isdisjoint(h.removeprefix("sym-") for h in symbols(parse(body)))
    ]
    return "\n".join(lines)


def _general() -> list[Law]:
    return [
        *masks.laws(),
        *bounds.laws(),
        *groups.laws(),
        ("dim-conflict", "(= d (DNum a)) (= d (DNum b)) (!= a b)", '(panic "two sizes for one dimension")'),
        # a symbol that turns out to be a number is one no more: guards ask for symbols that may be any
        ("symbol-number", "(= d (DNum a)) (= d (DSym s))", "(subsume (DSym s))"),
        ("vector-length", f"(= {INT64} (dtype o)) (= 1 (rank o)) (= (DNum n) (dim o -1))", "(set (len o) n)"),
        ("axes", "(= r (rank o))", "(set (axes o) r)"),
        ("axes-none", "(= t (dtype o))", "(set (axes o) 0)"),  # of any value, but that each has a type
        ("sized-number", "(= d (DNum a))", "(sized d)"),
        ("sized-symbol", "(source d g i)", "(sized d)"),
        ("sized-sum", "(dimsum d a b) (sized a) (sized b)", "(sized d)"),
        ("size-sum", "(= t (DimT d)) (dimsum d a b) (sized a) (sized b)", "(union t (Add (DimT a) (DimT b)))"),
        ("sized-plus", "(dimplus d a k) (sized a)", "(sized d)"),
        ("size-plus", "(= t (DimT d)) (dimplus d a k) (sized a)", "(union t (Add (DimT a) (Ints (vec-of k))))"),
        (
            "size-of",
            f"(= 1 (len t)) (= 1 (rank t)) (= {INT64} (dtype t)) (= d (elem t 0)) (sized d)",
            "(union t (DimT d))",
        ),
        ("size-number", "(= t (DimT (DNum a)))", "(union t (Ints (vec-of a)))"),
        *_numbers(),
        *_together(),
        *_scaled(),
        ("size-symbol", "(= t (DimT d)) (source d g i)", "(union t (Shape g i (+ i 1)))"),
        ("along-rest", "(along l a k) (> k 0) (= l (Cons x r))", "(along r a (- k 1))"),
        ("extent-none", "(along l a k) (= l (Nil))", "(set (extent l a) 0)"),
        (
            "extent-more",
            "(along l a k) (= l (Cons x r)) (= n (extent r a)) (= (DNum m) (dim x a))",
            "(set (extent l a) (+ m n))",
        ),
        *_shapes("spread", "broadcast", ["x", "y"]),
    ]


def _together() -> Iterator[Law]:
    """The sizes of a tensor as one term, so that two tensors of one shape are found by one comparison."""
    for n in range(RANKS + 1):
        each = "".join(f" (= d{k} (dim o -{k}))" for k in range(1, n + 1))
        named = "".join(f" d{k}" for k in range(1, n + 1))
        yield f"sizes-{n}", f"(= {n} (rank o)){each}", f"(union (sizes o) (sizes-{n}{named}))"


def _scaled() -> Iterator[Law]:
    """What a scalar or a vector of one element scales has the sizes of the result, where those alone are known."""
    for op in (op for op in OPS.values() if op.scales):
        for x, c in (("x", "y"), ("y", "x")) if op.commutative else (("x", "y"),):
            term = f"(= o ({op.name} x y)) (= d (dim o i))"
            yield f"scaled-{op.name}-{x}", f"{term} (= 0 (rank {c}))", f"(union (dim {x} i) d)"
            one = f"(= 1 (rank {c})) (= (DNum 1) (dim {c} -1)) (= r (rank {x})) (> r 0)"
            yield f"scaled-{op.name}-{x}-one", f"{term} {one}", f"(union (dim {x} i) d)"


def _numbers() -> Iterator[Law]:
    """A vector whose elements are known is a constant."""
    for n in range(2, 6):
        elements = " ".join(f"(= (DNum e{i}) (elem t {i}))" for i in range(n))
        names = " ".join(f"e{i}" for i in range(n))
        vector = f"(= {n} (len t)) (= 1 (rank t)) (= {INT64} (dtype t))"
        yield f"numbers-{n}", f"{vector} {elements}", f"(union t (Ints (vec-of {names})))"


def _laws(op: Op) -> list[Law]:
    names = [f"a{i}" for i in range(len(op.operands))]
    term = f"(= o ({op.name} {' '.join(names)}))"
    tensors = [n for n, s in zip(names, op.sorts, strict=True) if s == TENSOR]
    laws: list[Law] = []

    def law(tag: str, body: str, action: str) -> None:
        laws.append((f"{tag}-{op.name}", f"{term} {body}".rstrip(), action))

    if op.dtype == "first" and tensors and op.out == TENSOR:
        law("dtype", f"(= t (dtype {tensors[0]}))", "(set (dtype o) t)")
    elif op.dtype == "second":
        law("dtype", f"(= t (dtype {tensors[1]}))", "(set (dtype o) t)")
    elif op.dtype == "cast":
        law("dtype", "", f"(set (dtype o) {names[-1]})")
    elif op.dtype == "list":
        rest = " ".join(["(Cons x l)", *names[1:]])
        laws.append((f"dtype-{op.name}", f"(= o ({op.name} {rest})) (= t (dtype x))", "(set (dtype o) t)"))
    elif op.dtype in ("bool", "int64"):
        law("dtype", "", f"(set (dtype o) {BOOL if op.dtype == 'bool' else INT64})")
    return laws if op.out in (LIST, NODE) else [*laws, *_shapes(op.name, op.shape, names)]


def _shapes(term: str, law: str, names: list[str]) -> Iterator[Law]:
    if law and law not in SHAPES:
        raise RuleError(f"term {term}: no shape law is named {law!r}; there are {', '.join(sorted(SHAPES))}")
    for i, (body, action) in enumerate(SHAPES.get(law, ())):
        for k, n in enumerate(names):
            body, action = body.replace(f"${k}", n), action.replace(f"${k}", n)
        yield f"shape{i}-{term}", f"(= o ({term} {' '.join(names)})) {body}".rstrip(), action


#: Shape laws by name, as (body, action): `o` is the term, $0, $1, ... its operands.
SHAPES: dict[str, list[tuple[str, str]]] = {
    "same": [
        ("(= r (rank $0))", "(set (rank o) r)"),
        ("(= d (dim $0 i))", "(union (dim o i) d)"),
    ],
    "broadcast": [
        ("(= r (rank $0)) (= q (rank $1))", "(set (rank o) (max r q))"),
        ("(= d (dim $0 i)) (= d (dim $1 i))", "(union (dim o i) d)"),
        ("(= (DNum 1) (dim $0 i)) (= d (dim $1 i))", "(union (dim o i) d)"),
        ("(= (DNum 1) (dim $1 i)) (= d (dim $0 i))", "(union (dim o i) d)"),
        ("(= (DNum k) (dim $0 i)) (> k 1)", "(union (dim o i) (DNum k))"),
        ("(= (DNum k) (dim $1 i)) (> k 1)", "(union (dim o i) (DNum k))"),
        ("(= q (rank $1)) (= d (dim $0 i)) (< i (- 0 q))", "(union (dim o i) d)"),
        ("(= q (rank $0)) (= d (dim $1 i)) (< i (- 0 q))", "(union (dim o i) d)"),
    ],
    "where": [
        ("", "(spread $0 (spread $1 $2))"),
        ("(= s (spread $0 (spread $1 $2))) (= r (rank s))", "(set (rank o) r)"),
        ("(= s (spread $0 (spread $1 $2))) (= d (dim s i))", "(union (dim o i) d)"),
        *((f"(= d (dim $0 i)) {c}", "(union (dim o i) d)") for c in ("(fval $1) (lowest $2)", "(lowest $1) (fval $2)")),
    ],
    "matmul": [
        ("(= r (rank $0)) (= q (rank $1)) (>= r 2) (>= q 2)", "(set (rank o) (max r q))"),
        ("(= q (rank $1)) (>= q 2) (= d (dim $0 -2))", "(union (dim o -2) d)"),
        ("(= r (rank $0)) (>= r 2) (= d (dim $1 -1))", "(union (dim o -1) d)"),
        ("(= d (dim $0 i)) (= d (dim $1 i)) (< i -2)", "(union (dim o i) d)"),
        ("(= q (rank $1)) (= d (dim $0 i)) (< i -2) (< i (- 0 q))", "(union (dim o i) d)"),
        ("(= q (rank $0)) (= d (dim $1 i)) (< i -2) (< i (- 0 q))", "(union (dim o i) d)"),
    ],
    "transpose": [
        ("", "(set (rank o) (vec-length $1))"),
        (
            "(idx j) (< j (vec-length $1)) (= i (- (vec-get $1 j) (vec-length $1))) (= d (dim $0 i))",
            "(union (dim o (- j (vec-length $1))) d)",
        ),
    ],
    "reshape": [
        ("(= n (len $1))", "(set (rank o) n)"),
        ("(= n (len $1)) (= (DNum k) (elem $1 j)) (> k 0)", "(union (dim o (- j n)) (DNum k))"),
        # a symbol that is 0 copies a size instead, and all is empty then
        ("(= n (len $1)) (= d (elem $1 j)) (= d (DSym s))", "(union (dim o (- j n)) d)"),
        (
            "(= n (len $1)) (= (DNum 0) (elem $1 j)) (= r (rank $0)) (= d (dim $0 (- j r)))",
            "(union (dim o (- j n)) d)",
        ),
        # a size that is a symbol: another number of a target may be -1 where the model runs
        ("(= $1 (Shape y i k)) (= n (len $1)) (= d (elem $1 j)) (= d (DSym s))", "(union (dim o (- j n)) d)"),
        ("(= n (len $1)) (= d (elem $1 j)) (source d y i)", "(union (dim o (- j n)) d)"),
        (
            "(= 3 (len $1)) (= 4 (rank $0)) (= (DNum 0) (elem $1 0)) (= (DNum 0) (elem $1 1)) (= (DNum -1) (elem $1 2))"
            " (= (DNum h) (dim $0 -1)) (= (DNum k) (dim $0 -2))",
            "(union (dim o -1) (DNum (* h k)))",
        ),
    ],
    "expand": [
        ("(= n (len $1)) (= r (rank $0))", "(set (rank o) (max n r))"),
        ("(= n (len $1)) (= (DNum 1) (elem $1 j)) (= d (dim $0 (- j n)))", "(union (dim o (- j n)) d)"),
        ("(= n (len $1)) (= d (elem $1 j)) (= (DNum 1) (dim $0 (- j n)))", "(union (dim o (- j n)) d)"),
        ("(= n (len $1)) (= d (elem $1 j)) (= d (dim $0 (- j n)))", "(union (dim o (- j n)) d)"),
        ("(= n (len $1)) (= r (rank $0)) (= d (elem $1 j)) (< (- j n) (- 0 r))", "(union (dim o (- j n)) d)"),
    ],
    "unsqueeze": [
        ("(= r (rank $0))", "(set (rank o) (+ r 1))"),
        ("", "(union (dim o $1) (DNum 1))"),
        ("(= d (dim $0 i)) (> i $1)", "(union (dim o i) d)"),
        ("(= d (dim $0 i)) (<= i $1)", "(union (dim o (- i 1)) d)"),
    ],
    "squeeze": [
        ("(= r (rank $0))", "(set (rank o) (- r 1))"),
        ("(= d (dim $0 i)) (> i $1)", "(union (dim o i) d)"),
        ("(= d (dim $0 i)) (< i $1)", "(union (dim o (+ i 1)) d)"),
    ],
    "slice": [
        ("(= r (rank $0))", "(set (rank o) r)"),
        ("(= d (dim $0 i)) (!= i $3)", "(union (dim o i) d)"),
    ],
    "slicec": [
        ("(= r (rank $0))", "(set (rank o) r)"),
        ("(= d (dim $0 i)) (!= i $1)", "(union (dim o i) d)"),
        ("", "(union (dim o $1) (DNum (/ (+ (- $3 $2) (- $4 1)) $4)))"),
    ],
    "gather": [
        ("(= r (rank $0)) (= q (rank $1))", "(set (rank o) (+ q (- r 1)))"),
        ("(= d (dim $0 i)) (> i $2)", "(union (dim o i) d)"),
        ("(= q (rank $1)) (= d (dim $0 i)) (< i $2)", "(union (dim o (+ i (- 1 q))) d)"),
        ("(= d (dim $1 i))", "(union (dim o (+ i (+ $2 1))) d)"),
    ],
    "concat": [
        ("(= $0 (Cons x l)) (= r (rank x))", "(set (rank o) r)"),
        ("(= $0 (Cons x l)) (= d (dim x i)) (!= i $1)", "(union (dim o i) d)"),
        ("", f"(along $0 $1 {_MANY})"),
        ("(= n (extent $0 $1))", "(union (dim o $1) (DNum n))"),
        ("(= $0 (Cons x (Cons y (Nil)))) (= 1 (rank x)) (= m (len x)) (= n (len y))", "(set (len o) (+ m n))"),
        ("(= $0 (Cons x (Cons y (Nil)))) (= 1 (rank x)) (= d (elem x i))", "(union (elem o i) d)"),
        ("(= $0 (Cons x (Cons y (Nil)))) (= m (len x)) (= d (elem y i))", "(union (elem o (+ m i)) d)"),
    ],
    "beside": [
        ("(= $0 (Cons x l)) (= r (rank x))", "(set (rank o) r)"),
        ("(= $0 (Cons x l)) (= d (dim x -2))", "(union (dim o -2) d)"),
        ("(= n (width-of $0))", "(union (dim o -1) (DNum n))"),
    ],
    "reduce": [
        ("(= 1 $2) (= r (rank $0))", "(set (rank o) r)"),
        ("(= 1 $2) (= $1 (vec-of -1))", "(union (dim o -1) (DNum 1))"),
        ("(= 1 $2) (= $1 (vec-of -1)) (= d (dim $0 i)) (< i -1)", "(union (dim o i) d)"),
    ],
    "merged": [
        ("", "(set (rank o) 3)"),
        ("(= d (dim $0 i)) (> i -3)", "(union (dim o i) d)"),
        ("(= d (dim o i)) (> i -3)", "(union (dim $0 i) d)"),
        ("(= (DNum b) (dim $0 -4)) (= (DNum n) (dim $0 -3))", "(union (dim o -3) (DNum (* b n)))"),
    ],
    "repeated": [
        ("(= r (rank $0))", "(set (rank o) r)"),
        ("(= d (dim $0 i)) (!= i -3)", "(union (dim o i) d)"),
        ("(= (DNum n) (dim $0 -3))", "(union (dim o -3) (DNum (* n $1)))"),
    ],
    "grouped": [
        ("", "(set (rank o) 5) (union (dim o -3) (DNum $1))"),
        ("(= d (dim $0 i)) (> i -3)", "(union (dim o i) d)"),
        ("(= d (dim o i)) (> i -3)", "(union (dim $0 i) d)"),
        ("(= d (dim $0 -4))", "(union (dim o -5) d)"),
        ("(= d (dim o -5))", "(union (dim $0 -4) d)"),
        ("(= (DNum n) (dim $0 -3))", "(union (dim o -4) (DNum (/ n $1)))"),
    ],
    "wide": [
        ("(= r (rank $0))", "(set (rank o) r)"),
        ("(= d (dim $0 i)) (!= i -1)", "(union (dim o i) d)"),
        ("(= (DNum h) (dim $0 -1))", "(union (dim o -1) (DNum (* 2 h)))"),
        # a table cut to the positions there are: its length is known of the whole only
        ("(= d (dim o i)) (!= i -1)", "(union (dim $0 i) d)"),
    ],
    "sdpa": [
        ("", "(set (rank o) 4)"),
        ("(= d (dim $0 i)) (< i -1)", "(union (dim o i) d)"),
        ("(= d (dim $2 -1))", "(union (dim o -1) d)"),
    ],
    "attention3": [
        ("", "(set (rank o) 3)"),
        ("(= d (dim $0 i)) (< i -1)", "(union (dim o i) d)"),
        ("(= (DNum d) (dim $2 -1)) (> $5 0)", "(union (dim o -1) (DNum (* $4 (/ d $5))))"),
    ],
    "mha": [
        ("", "(set (rank o) 3)"),
        ("(= d (dim $0 i)) (< i -1)", "(union (dim o i) d)"),
        (
            "(= 4 (rank $2)) (= (DNum n) (dim $2 -3)) (= (DNum h) (dim $2 -1))",
            "(union (dim o -1) (DNum (* n h)))",
        ),
        ("(= 3 (rank $2)) (= d (dim $2 -1))", "(union (dim o -1) d)"),
    ],
    "scalar": [
        ("", "(set (rank o) 0) (set (fval o) $0) (const o)"),
        (f"(= {FLOAT32} $1) (<= $0 {masking(4)!r})", "(lowest o)"),
    ],
    "ints": [
        ("", "(set (rank o) 1) (set (len o) (vec-length $0)) (union (dim o -1) (DNum (vec-length $0))) (const o)"),
        ("(idx j) (< j (vec-length $0))", "(union (elem o j) (DNum (vec-get $0 j)))"),
    ],
    "int0": [("", "(set (rank o) 0) (set (len o) 1) (union (elem o 0) (DNum $0)) (const o)")],
    "dimt": [("", "(set (rank o) 1) (set (len o) 1) (union (dim o -1) (DNum 1)) (union (elem o 0) $0)")],
    "shapeof": [
        ("", "(set (rank o) 1) (set (len o) (- $2 $1)) (union (dim o -1) (DNum (- $2 $1)))"),
        ("(= d (dim $0 i)) (>= i $1) (< i $2)", "(union (elem o (- i $1)) d)"),
    ],
    "range": [("", "(set (rank o) 1)")],
}

#: Terms that laws of facts make of nothing but facts.
MADE_BY_FACTS = OPS.keys() & {head for _, _, action in _general() for head in symbols(parse(action))}
