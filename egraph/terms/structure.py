"""Leaves, lists and what no rule looks into.

Tensors and names live in a side table of the caller: only integers of ours enter the e-graph.
"""

from __future__ import annotations

import numpy as np

from .dtypes import NAMES
from .op import LIST, NODE, Op, declare

TERMS: tuple[Op, ...] = (
    declare("Input", "payload:i64", None, dtype="", role="input"),
    declare("Const", "payload:i64", None, dtype="", role="stored"),
    declare(
        "FConst", "value:f64 to:i64", lambda v, to: np.asarray(v, NAMES[to]), "scalar", dtype="cast", role="number",
        exact=True, symbolic="number",
    ),
    declare("Ints", "values:IV", lambda v: np.asarray(v, np.int64), "ints", dtype="int64", role="number", exact=True,
            symbolic="vector"),
    declare("Int0", "value:i64", lambda v: np.asarray(v, np.int64), "int0", dtype="int64", role="number", exact=True,
            symbolic="integer"),
    declare("Absent", "", lambda: None, dtype="", role="absent"),
    declare(
        "DimT", "d:Dim", lambda d: np.asarray([d], np.int64), "dimt", dtype="int64", role="marker", common=True,
        short="size", symbolic="vector",
    ),
    declare("Cons", "head tail:TL", lambda h, t: [h, *t], out=LIST, dtype="", role="list", exact=True),
    declare("Nil", "", lambda: [], out=LIST, dtype="", role="list", exact=True),
    declare("Op1", "payload:i64 ins:TL", None, dtype="", role="opaque"),
    declare("OpN", "payload:i64 ins:TL", None, out=NODE, dtype="", role="opaque"),
    declare("Out", "node:Nd index:i64", lambda n, i: n[i], dtype="", role="output", exact=True),
)  # fmt: skip
