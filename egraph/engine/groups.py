"""Facts of the constant matrices that one tensor is multiplied by, and of what is added to the products: which they
are, in the order of the matrices' numbers.

Each tensor x has a chain of such numbers: the first, the one after each, the last. From the last to the first, lists
are made of the matrices, and `weights-of` states the whole one of x: no subset, of which there are many. A product that
shows up later makes another list. Where a constant vector is added to each of the products, `biases-of` states the list
of these, too; of several, that of the least number. Of these lists `widths-of` has the width of each member, `width-of`
their sum, and `item-of` each member by its place.
"""

from __future__ import annotations

from .masks import Law

RELATIONS = """
(function first-weight (T) i64 :merge (min old new))
(function last-weight (T) i64 :merge (max old new))
(function next-weight (T i64) i64 :merge (min old new))
(relation weights-from (T i64 TL))
(function bias-number (T i64) i64 :merge (min old new))
(relation biased-from (T i64 TL TL))
(relation left-from (TL TL i64))
(constructor item-of (TL i64) T :unextractable)
(function widths-of (TL) IV :no-merge)
(function width-of (TL) i64 :no-merge)
"""


def laws() -> list[Law]:
    product = "(= o (MatMul x w)) (= k (weight-number w))"
    several = "(= f (first-weight x)) (= e (last-weight x)) (< f e)"
    added = "(sym-Add o p b) (= n (weight-number b)) (= 1 (rank b)) (= (DNum m) (dim b -1)) (= (DNum m) (dim w -1))"
    biased = f"(= p (MatMul x w)) (= k (weight-number w)) {added}"
    least = f"{biased} (= n (bias-number x k))"
    return [
        ("weights-ends", product, "(set (first-weight x) k) (set (last-weight x) k)"),
        ("weights-next", f"{product} (= p (MatMul x v)) (= j (weight-number v)) (< k j)", "(set (next-weight x k) j)"),
        ("weights-last", f"{product} {several} (= k e)", "(weights-from x k (Cons w (Nil)))"),
        ("weights-more", f"(weights-from x j l) (= j (next-weight x k)) {product}", "(weights-from x k (Cons w l))"),
        ("weights", f"(weights-from x f l) {several}", "(weights-of x l)"),
        ("weights-listed", "(weights-of x l)", "(left-from l l 0)"),
        ("bias-least", biased, "(set (bias-number x k) n)"),
        ("biased-last", f"{least} {several} (= k e)", "(biased-from x k (Cons w (Nil)) (Cons b (Nil)))"),
        (
            "biased-more",
            f"(biased-from x j l c) (= j (next-weight x k)) {least}",
            "(biased-from x k (Cons w l) (Cons b c))",
        ),
        ("biased", f"(biased-from x f l c) {several}", "(biases-of x l c)"),
        ("biased-listed", "(biases-of x l c)", "(left-from l l 0) (left-from c c 0)"),
        ("items", "(left-from l c i) (= c (Cons w r))", "(union (item-of l i) w) (left-from l r (+ i 1))"),
        ("widths-none", "(left-from l c i) (= c (Nil))", "(set (widths-of c) (vec-empty)) (set (width-of c) 0)"),
        (
            "widths-more",
            "(left-from l c i) (= c (Cons w r)) (= z (widths-of r)) (= m (width-of r)) (= a (rank w))"
            " (< a 3) (= (DNum n) (dim w -1))",
            "(set (widths-of c) (vec-append (vec-of n) z)) (set (width-of c) (+ m n))",
        ),
    ]
