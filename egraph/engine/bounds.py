"""Facts of floating values and 0: what squares, their means, and sums of these are.

    floating(t)       the element type t is one of floats
    zero-or-more(x)   no element of x is below 0, or is -0.0; it may be NaN

Of integers nothing is said, whose squares wrap around.
"""

from __future__ import annotations

from ..terms.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
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
    ]


__all__ = ["HEADER", "laws"]
