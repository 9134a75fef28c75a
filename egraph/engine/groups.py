"""Facts of the constant matrices that one tensor is multiplied by: which they are, in the order of their numbers.

Each tensor x has a chain of such numbers: the first, the one after each, the last. From the last to the first, lists are
made of the matrices, and the whole one is what `weights` states of x. A product that shows up later makes another list,
longer by one, so only whole groups are stated of a graph in which nothing is new. Of those lists `widths` has the number
of columns of each matrix, and `item` each matrix by its place.
"""

from __future__ import annotations

from .masks import Law

RELATIONS = """
(function first-weight (T) i64 :merge (min old new))
(function last-weight (T) i64 :merge (max old new))
(function next-weight (T i64) i64 :merge (min old new))
(relation weights-from (T i64 TL))
(relation weights (T TL))
(relation rest (TL TL i64))
(constructor item (TL i64) T :unextractable)
(function widths (TL) IV :no-merge)
"""
#: Matrices of a group whose columns are counted, each of which takes a round.
_MANY = 1000


def laws() -> list[Law]:
    product = "(= o (MatMul x w)) (= k (weight w))"
    several = "(= f (first-weight x)) (= e (last-weight x)) (< f e)"
    return [
        ("weights-ends", product, "(set (first-weight x) k) (set (last-weight x) k)"),
        ("weights-next", f"{product} (= p (MatMul x v)) (= j (weight v)) (< k j)", "(set (next-weight x k) j)"),
        ("weights-last", f"{product} {several} (= k e)", "(weights-from x k (Cons w (Nil)))"),
        ("weights-more", f"(weights-from x j l) (= j (next-weight x k)) {product}", "(weights-from x k (Cons w l))"),
        ("weights", f"(weights-from x f l) {several}", "(weights x l)"),
        ("weights-listed", "(weights x l)", f"(rest l l 0) (along l -1 {_MANY})"),
        ("item", "(rest l c i) (= c (Cons w r))", "(union (item l i) w) (rest l r (+ i 1))"),
        ("widths-none", "(rest l c i) (= c (Nil))", "(set (widths c) (vec-empty))"),
        (
            "widths-more",
            "(rest l c i) (= c (Cons w r)) (= z (widths r)) (= 2 (rank w)) (= (DNum n) (dim w -1))",
            "(set (widths c) (vec-append (vec-of n) z))",
        ),
    ]
