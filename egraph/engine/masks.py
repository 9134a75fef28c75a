"""Facts of attention masks: which axes they broadcast, and which rows they leave a key, proved from their own terms.

    no-negative(x)        no element is negative, and all are of the order of sizes: sums of some do not wrap around
    has-zero(x)           along the last axis, every row of x has a 0
    all-true(x)           every element is true, or a number other than 0
    all-false(x)          every element is false
    row-true(c)           along the last axis, every row of the boolean c has a true element
    visible(m)            no row of the mask m, boolean or added, hides every key
    as-columns(x, r)      x is the vector r along the last axis
    as-rows(x, r)         x is the vector r along the axis before it
    on-diagonal(c, j, i)  c is true wherever its column's j equals its row's i
    same-batch(q, k)      of one attention: one size by proof, or two symbols, whose broadcasting would be an accident
    mask-exact(m, q, k)   the mask has exactly the rows and columns of the scores

Lengths are taken to be 1 at least. Causality is i >= j, a window i - j < W, a padding mask proves nothing.
"""

from __future__ import annotations

from ..terms import OPS
from ..terms.dtypes import BOOL, FLOAT32, FLOAT64, INT32, INT64

Law = tuple[str, str, str]  # name, body, action

RELATIONS = """
(relation as-columns (T T))
(relation as-rows (T T))
(relation on-diagonal (T T T))
(relation part-of-mask (T T T))
(relation mask-fits (T T i64 i64))
"""
#: A value a finite mask holds where it hides nothing; far from what `lowest` takes for hiding.
_SEEN = -1000.0
#: Above any position that is counted from, and far from where integers wrap around.
_FAR = 2**20


def laws() -> list[Law]:
    return [*_numbers(), *_truth(), *_diagonals(), *_visible(), *_within()]


def _numbers() -> list[Law]:
    counted = "(= a (Int0 k)) (= b (Int0 s)) (> s 0) (= o (Range a l b))"
    wide = (FLOAT32, FLOAT64, INT32, INT64)  # a narrower integer wraps around
    return [
        *((f"nonneg-cast-{to}", f"(no-negative x) (= o (Cast x {to}))", "(no-negative o)") for to in wide),
        ("nonneg-number", f"(= o (Int0 k)) (>= k 0) (< k {_FAR})", "(no-negative o)"),
        ("nonneg-range", "(= o (Range a l b)) (= b (Int0 1)) (no-negative a)", "(no-negative o)"),
        ("starts-range", f"{counted} (= k 0)", "(has-zero o)"),
        ("starts-unsqueeze", "(has-zero x) (= o (Unsqueeze x a)) (!= a -1)", "(has-zero o)"),
        ("nonneg-shape", "(= o (Shape x a b))", "(no-negative o)"),
        ("nonneg-size", "(= o (DimT d))", "(no-negative o)"),
        ("nonneg-sum", "(= o (Add x y)) (no-negative x) (no-negative y)", "(no-negative o)"),
        *((f"nonneg-{op}", f"(no-negative x) (= o {term})", "(no-negative o)") for op, term in moving()),
    ]


def moving() -> list[tuple[str, str]]:
    """Terms of which holds what holds of all elements of x."""
    carrying = [op for op in OPS.values() if op.layout or op.carries]
    return [(op.name, f"({' '.join([op.name, *(name for name, _ in op.operands)])})") for op in carrying]


def _truth() -> list[Law]:
    zero = "(= 1 (len z)) (= (DNum 0) (elem z 0))"
    column = "(has-zero x) (no-negative y) (= (DNum 1) (dim y -1))"
    return [
        ("always-number", "(= o (Int0 k)) (!= k 0)", "(all-true o)"),
        ("never-not", "(all-true x) (= o (Not x))", "(all-false o)"),
        ("always-not", "(all-false x) (= o (Not x))", "(all-true o)"),
        *((f"never-{op}", f"(all-false x) (= o {term})", "(all-false o)") for op, term in moving()),
        *((f"always-{op}", f"(all-true x) (= o {term})", "(all-true o)") for op, term in moving()),
        ("always-cast", f"(all-true x) (= o (Cast x {BOOL}))", "(all-true o)"),
        ("always-and", "(= o (And x y)) (all-true x) (all-true y)", "(all-true o)"),
        ("always-or", "(all-true x) (sym-Or o x y)", "(all-true o)"),
        ("always-greater", f"(no-negative x) (= o (GreaterOrEqual x z)) {zero}", "(all-true o)"),
        ("always-less", f"(no-negative x) (= o (LessOrEqual z x)) {zero}", "(all-true o)"),
        ("keeps-always", f"(all-true x) (= {BOOL} (dtype x))", "(row-true x)"),
        ("keeps-less", f"(= o (LessOrEqual x y)) {column}", "(row-true o)"),
        ("keeps-greater", f"(= o (GreaterOrEqual y x)) {column}", "(row-true o)"),
        ("keeps-and", "(row-true x) (all-true y) (sym-And o x y)", "(row-true o)"),
        ("keeps-triangle", "(all-true x) (= o (Trilu x 0))", "(row-true o)"),
        ("keeps-unsqueeze", "(row-true x) (= o (Unsqueeze x a)) (!= a -1)", "(row-true o)"),
        ("keeps-expand", "(row-true x) (= o (Expand x t))", "(row-true o)"),
        ("keeps-cast", f"(row-true x) (= o (Cast x {BOOL}))", "(row-true o)"),
    ]


def _diagonals() -> list[Law]:
    pair = "(as-columns x j) (as-rows y i)"
    window = "(= 1 (len w)) (= (DNum k) (elem w 0)) (> k 0)"
    counted = "(= r (Range a l b))"
    true = {
        "less": "(= o (LessOrEqual x y))", "greater": "(= o (GreaterOrEqual y x))",
        "after": f"(= o (Greater x s)) (= s (Sub y w)) {window} (no-negative i)",
        "before": f"(= o (Less s x)) (= s (Sub y w)) {window} (no-negative i)",
        "near": f"(= o (Less s w)) (= s (Sub y x)) {window}",
        "around": f"(= o (LessOrEqual t w)) (= t (Abs s)) (= s (Sub y x)) {window}",
        "about": f"(= o (LessOrEqual t w)) (= t (Abs s)) (= s (Sub x y)) {window}",
    }  # fmt: skip
    past = (
        "(= a (Int0 0)) (= b (Int0 1)) (= j (Range a l b)) (sym-Add l p n) (= g (Range a n b)) (sym-Add i g p)"
        " (no-negative p)"
    )
    return [
        ("columns-range", counted, "(as-columns r r)"),
        ("columns-past", f"{counted} (sym-Add o r p) (= 1 (rank o))", "(as-columns o o)"),
        ("columns-unsqueeze", "(as-columns x r) (= o (Unsqueeze x a)) (!= a -1)", "(as-columns o r)"),
        ("rows-unsqueeze", "(as-columns x r) (= o (Unsqueeze x -1))", "(as-rows o r)"),
        ("rows-further", "(as-rows x r) (= o (Unsqueeze x a)) (< a -2)", "(as-rows o r)"),
        *((f"diagonal-{name}", f"{pair} {body}", "(on-diagonal o j i)") for name, body in true.items()),
        ("diagonal-both", "(on-diagonal x j i) (on-diagonal y j i) (= o (And x y))", "(on-diagonal o j i)"),
        ("diagonal-and", "(on-diagonal x j i) (all-true y) (sym-And o x y)", "(on-diagonal o j i)"),
        ("keeps-diagonal", "(on-diagonal c r r)", "(row-true c)"),
        ("keeps-past", f"(on-diagonal c j i) {past}", "(row-true c)"),
    ]


def _visible() -> list[Law]:
    return [
        ("visible-keeps", f"(row-true c) (= {BOOL} (dtype c))", "(visible c)"),
        ("visible-select", f"(row-true c) (= m (Where c x n)) (= v (fval x)) (> v {_SEEN})", "(visible m)"),
        ("visible-unsqueeze", "(visible m) (= o (Unsqueeze m a)) (!= a -1)", "(visible o)"),
        ("visible-expand", "(visible m) (= o (Expand m t))", "(visible o)"),
    ]


def _within() -> list[Law]:
    """(within m x i j): axis i of the mask m broadcasts into axis j of x, whatever numbers symbols stand for.

    A symbol may be 1 or the other size; where it is neither, the original would widen its result. The parts of
    masks that are added or selected count one by one, since the whole may have dims nobody knows; such a part
    fits, too, if it has no such axis.
    """
    select = "(= m (Where n x p))"
    whole = "(= o (Sdpa q k v m s c g))"
    laws: list[Law] = [
        *(
            (f"batch-{how}-{t}", f"{whole} {condition.format(t)}", f"(same-batch q {t})")
            for t in "kv"
            for how, condition in (
                ("equal", "(= d (dim q -4)) (= d (dim {} -4))"),
                ("symbols", "(= (DSym a) (dim q -4)) (= (DSym b) (dim {} -4))"),
            )
        ),
        (
            "mask-exact",
            f"{whole} (within m q -4 -4) (within m q -3 -3) (= d (dim m -2)) (= d (dim q -2))"
            " (= e (dim m -1)) (= e (dim k -2))",
            "(mask-exact m q k)",
        ),
        ("mask-of", whole, "(part-of-mask m q k)"),
        ("mask-sum", "(part-of-mask m q k) (sym-Add m n p)", "(part-of-mask n q k)"),
        ("mask-condition", f"(part-of-mask m q k) {select}", "(part-of-mask n q k)"),
        ("mask-then", f"(part-of-mask m q k) {select}", "(part-of-mask x q k)"),
        ("mask-else", f"(part-of-mask m q k) {select}", "(part-of-mask p q k)"),
        ("fits-within", "(within m z i j)", "(mask-fits m z i j)"),
    ]
    for axis, x, other in ((-4, "q", -4), (-3, "q", -3), (-2, "q", -2), (-1, "k", -2)):
        mine, theirs = f"(dim m {axis})", f"(dim {x} {other})"
        laws += [
            (f"within-{how}{axis}", f"(part-of-mask m q k) {condition}", f"(within m {x} {axis} {other})")
            for how, condition in (
                ("one", f"(= (DNum 1) {mine})"),
                ("same", f"(= d {mine}) (= d {theirs})"),
                ("symbols", f"(= (DSym a) {mine}) (= (DSym b) {theirs})"),
                ("symbol", f"(= (DSym a) {mine}) (= (DNum w) {theirs}) (> w 1)"),
                ("number", f"(= (DNum w) {mine}) (> w 1) (= (DSym b) {theirs})"),
            )
        ]
        place, deep = f"z {axis} {other}", f"(= r (rank m)) (>= r {-axis})"
        sums, picks = (" ".join(f"(mask-fits {t} {place})" for t in parts) for parts in ("np", "nxp"))
        laws += [
            (
                f"fits-short{axis}", f"(part-of-mask m q k) (= r (rank m)) (< r {-axis})",
                f"(mask-fits m {x} {axis} {other})",
            ),
            (f"within-sum{axis}", f"(= m (Add n p)) {sums} {deep}", f"(within m {place})"),
            (f"within-select{axis}", f"{select} {picks} {deep}", f"(within m {place})"),
        ]  # fmt: skip
    return laws
