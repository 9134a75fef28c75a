"""Facts of floating values and 0: what squares, their means, and sums of these are; and of truths as numbers.

    floating(t)       the element type t is one of floats
    zero-or-more(x)   no element of x is below 0, or is -0.0; it may be NaN
    zero-or-one(x)    every element of x is 0 or 1

Of integers no squares are said to be anything: they wrap around.
"""

from __future__ import annotations

from ..terms.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64
from .masks import Law, moving

HEADER = " ".join(f"(floating {t})" for t in (FLOAT16, FLOAT32, FLOAT64, BFLOAT16))


def laws() -> list[Law]:
    both = "(zero-or-more x) (zero-or-more y)"
    return [
        ("bound-square", "(= o (Mul x x)) (= t (dtype x)) (floating t)", "(zero-or-more o)"),
        ("bound-mean", "(zero-or-more x) (= o (ReduceMean x a k))", "(zero-or-more o)"),
        ("bound-total", "(zero-or-more x) (= o (ReduceSum x a k))", "(zero-or-more o)"),
        ("bound-sum", f"{both} (= o (Add x y))", "(zero-or-more o)"),
        ("bound-above", "(zero-or-more x) (sym-Add o x c) (= v (fval c)) (>= v 0.0)", "(zero-or-more o)"),
        *((f"bound-{op}", f"(zero-or-more x) (= o {term})", "(zero-or-more o)") for op, term in moving()),
        *_truths(),
    ]


def _truths() -> list[Law]:
    return [
        ("truth-cast", f"(= o (Cast x t)) (= {BOOL} (dtype x))", "(zero-or-one o)"),
        ("truth-as", "(zero-or-one x) (= o (Cast x t))", "(zero-or-one o)"),
        ("truth-expand", "(= o (Expand x t)) (= 1.0 (fval x))", "(zero-or-one o)"),
        *(
            (f"truth-chosen-{x}", f"(= o (Where c x y)) (= {x} (fval x)) (= {y} (fval y))", "(zero-or-one o)")
            for x, y in ((1.0, 0.0), (0.0, 1.0))
        ),
        ("truth-triangle", "(zero-or-one x) (= o (Trilu x u))", "(zero-or-one o)"),
        ("truth-part", "(zero-or-one x) (= o (Slice x a b i s))", "(zero-or-one o)"),
        ("truth-window", "(zero-or-one x) (= o (SliceC x i a b s))", "(zero-or-one o)"),
        ("truth-product", "(zero-or-one x) (zero-or-one y) (= o (Mul x y))", "(zero-or-one o)"),
        *((f"truth-{op}", f"(zero-or-one x) (= o {term})", "(zero-or-one o)") for op, term in moving()),
    ]
