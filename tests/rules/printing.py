"""Both sides of a rule as one ONNX model, printed by the emitters of the writer; markers are expanded by
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_egraph.egraph.engine.lang import call, cast, concat, ints, reshape, slice_, tensor, transpose, unsqueeze
from onnx_egraph.egraph.terms import CLASSES
from onnx_egraph.egraph.terms.dtypes import NAMES, code
from onnx_egraph.egraph.terms.expression import Expr, Int, Tensor
from onnx_egraph.egraph.terms.meaning import evaluate
from onnx_egraph.lowering.emit import emit

OPSET = 23
Env = Mapping[str, Any]
Shape = tuple[int, ...]


class Sheet:
    """What an emitter needs of the writer, on a graph of its own."""

    opset = OPSET

    def __init__(self, env: Env) -> None:
        self.env = env
        self.nodes: list[ir.Node] = []
        self.constants: dict[Any, ir.Value] = {}
        self.inputs = {n: _input(n, v) for n, v in env.items() if isinstance(v, np.ndarray | list)}
        self._ranks: dict[int, int] = {}

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None, *,
        domain: str = "", outputs: int = 1, sparing: bool = False,
    ) -> Any:  # fmt: skip
        made = [ir.Value(name=f"v{len(self.nodes)}_{i}") for i in range(outputs)]
        attrs = [ir.convenience.convert_attribute(k, v) for k, v in (attributes or {}).items()]
        self.nodes.append(ir.Node(domain, op, list(inputs), attrs, outputs=made, name=f"n{len(self.nodes)}"))
        return made if outputs > 1 else made[0]

    def ints(self, values: Sequence[int]) -> ir.Value:
        return self._constant(np.asarray(list(values), np.int64))

    def scalar(self, value: float | int, dtype: int) -> ir.Value:
        return self._constant(np.asarray(value, NAMES[dtype]))

    def rank(self, value: ir.Value) -> int:
        return self._ranks[id(value)]

    def _constant(self, array: np.ndarray) -> ir.Value:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            tensor = ir.tensor(array, name=name)
            self.constants[key] = ir.Value(
                name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape)
            )
        return self.constants[key]

    def emit(self, e: Expr) -> Any:
        """The value (or list of values) of a term."""
        if e.head == "var" and isinstance(self.env[e.args[0]], list):
            return [v for n, v in self.inputs.items() if n.partition(".")[0] == e.args[0]]
        if e.head == "var":
            return self.inputs[e.args[0]]
        if e.head == "item-of":
            return self.emit(e.args[0])[e.args[1].value(self.env)]
        if e.head == "Cons":
            return [self.emit(e.args[0]), *self.emit(e.args[1])]
        if e.head == "Nil":
            return []
        if e.head == "Absent":
            return None
        if e.head == "Out":
            return self.emit(e.args[0])[e.args[1].value(self.env)]
        assert e.op is not None
        if e.op.marker:
            return self.emit(definition(e, self.env))
        ins, attrs = e.op.parted([self.emit(a) if a.sort in CLASSES else a.value(self.env) for a in e.args])
        for a, v in zip(e.args, ins, strict=False):
            if isinstance(v, ir.Value):
                self._ranks[id(v)] = np.ndim(evaluate(a, self.env))
        return emit(e.op, self, ins, attrs)


def _input(name: str, value: Any) -> ir.Value:
    array = value[0] if isinstance(value, list) else value
    return ir.Value(name=name, type=ir.TensorType(ir.DataType(code(array))), shape=ir.Shape(array.shape))


def model(sides: Mapping[str, Expr], env: Env, like: np.ndarray) -> onnx.ModelProto:
    """A model with one output per side, all of the type and rank of `like`; the tensors of `env` are its
    inputs.
    """
    sheet = Sheet(env)
    outputs = []
    for name, side in sides.items():
        made = sheet.node("Identity", [sheet.emit(side)])
        made.name, made.type = name, ir.TensorType(ir.DataType(code(like)))
        made.shape = ir.Shape([f"{name}{i}" for i in range(like.ndim)])
        outputs.append(made)
    graph = ir.Graph(
        list(sheet.inputs.values()), outputs, nodes=sheet.nodes, initializers=list(sheet.constants.values()),
        opset_imports={"": OPSET, "com.microsoft": 1}, name="sides",
    )  # fmt: skip
    return ir.to_proto(ir.Model(graph, ir_version=10))


# ------------------------------------------------------------------------------------- definitions


def definition(e: Expr, env: Env) -> Expr:
    """A marker in terms that have an ONNX form, for operands of the shapes they have in `env`."""
    return DEFINITIONS[e.head](env, *e.args)


def _shape(x: Expr, env: Env) -> Shape:
    return tuple(np.shape(evaluate(x, env)))


def _number(value: float, x: Expr, env: Env) -> Tensor:
    return tensor("FConst", float(value), code(evaluate(x, env)))


def _paired(env: Env, x: Tensor, y: Tensor, pairs: Expr) -> Expr:
    if not pairs.value(env):
        return concat([x, y])
    shape = _shape(x, env)
    return reshape(concat([unsqueeze(x, -1), unsqueeze(y, -1)]), ints(*shape[:-1], 2 * shape[-1]))


def _wide(env: Env, x: Tensor, pairs: Expr, sign: Expr) -> Expr:
    return _paired(env, -x if sign.value(env) < 0 else x, x, pairs)


def _rot(env: Env, x: Tensor, pairs: Expr) -> Expr:
    shape = _shape(x, env)
    h = shape[-1] // 2
    if not pairs.value(env):
        return concat([-slice_(x, h, 2 * h), slice_(x, 0, h)])
    even, odd = slice_(x, 0, 2 * h - 1, step=2), slice_(x, 1, 2 * h, step=2)
    return reshape(concat([unsqueeze(-odd, -1), unsqueeze(even, -1)]), ints(*shape))


def _rope(env: Env, x: Tensor, c: Tensor, s: Tensor, pairs: Expr) -> Expr:
    return x * call("Wide", c, pairs, 1) + call("Rot", x, pairs) * call("Wide", s, pairs, 1)


def _rope_rows(env: Env, x: Tensor, c: Tensor, s: Tensor, pairs: Expr, layout: Expr, width: Expr) -> Expr:
    axis, size, r = -2 if layout.value(env) else -3, _shape(x, env)[-1], width.value(env)
    turned = tensor("Rope", slice_(x, 0, r) if r else x, unsqueeze(c, axis), unsqueeze(s, axis), pairs)
    return concat([turned, slice_(x, r, size)]) if r and r < size else turned


def _mean(x: Tensor) -> Tensor:
    return tensor("ReduceMean", x, (-1,), 1)


def _rnorm(env: Env, x: Tensor, eps: Expr) -> Expr:
    kind = code(evaluate(x, env))
    y = cast(x, 1) if kind == 10 else x
    root: Tensor = call("Sqrt", _mean(y * y) + _number(eps.value(env), y, env))
    return cast(y / root, kind) if kind == 10 else y / root


def _erf_plus(env: Env, x: Tensor) -> Expr:
    return tensor("Erf", x * _number(0.5**0.5, x, env)) + _number(1, x, env)


def _cubic(env: Env, x: Tensor) -> Tensor:
    return x + _number(0.044715, x, env) * (x * (x * x))


def _tanh_plus(env: Env, x: Tensor) -> Expr:
    return call("Tanh", _cubic(env, x) * _number((2 / np.pi) ** 0.5, x, env)) + _number(1, x, env)


def _scores(env: Env, q: Tensor, k: Tensor, s: Expr) -> Expr:
    *batch, t, h = range(len(_shape(k, env)))
    return (q @ transpose(k, (*batch, h, t))) * _number(s.value(env), q, env)


def _biased(env: Env, q: Tensor, k: Tensor, m: Tensor, s: Expr, cap: Expr) -> Expr:
    scores: Tensor = call("Scores", q, k, s)
    if cap.value(env):
        c = _number(cap.value(env), q, env)
        scores = call("Tanh", scores / c) * c
    return scores if m.head == "Absent" else scores + m


def _safe_softmax(env: Env, x: Tensor, guard: Expr) -> Expr:
    p: Tensor = call("Softmax", x, -1)
    return call("Where", call("IsNaN", p), _number(0, x, env), p) if guard.value(env) else p


def _repeat(env: Env, x: Tensor, n: Expr) -> Expr:
    b, h, t, d = _shape(x, env)
    return reshape(call("Expand", unsqueeze(x, -3), ints(b, h, n.value(env), t, d)), ints(b, h * n.value(env), t, d))


def _sdpa(env: Env, q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Expr, cap: Expr, guard: Expr) -> Expr:
    groups = _shape(q, env)[1] // _shape(k, env)[1]
    if groups > 1:
        k, v = call("RepeatKV", k, groups), call("RepeatKV", v, groups)
    masked, kind = m.head != "Absent", guard.value(env)
    if masked and m.value(env).dtype == bool:
        m = call("Where", m, _number(0, q, env), _number(-np.inf, q, env))
    p: Tensor = call("SafeSoftmax", call("Biased", q, k, m, s, cap), int(kind == 1))
    if kind == 2 and masked:
        hidden = call("Equal", call("ReduceMax", m, (-1,), 1), _number(-np.inf, q, env))
        p = call("Where", hidden, _number(0, q, env), p)
    return p @ v


def _selected(x: Expr, c: Expr, side: Expr, env: Env) -> Expr:
    return tensor("Where", c if side.value(env) else call("Not", c), x, _number(0, x, env))


DEFINITIONS: dict[str, Callable[..., Expr]] = {
    "Paired": _paired, "Wide": _wide, "Rot": _rot, "Rope": _rope, "RopeT": _rope_rows, "RNorm": _rnorm,
    "RopeEach": lambda env, x, c, s, pairs, width: _rope_rows(env, x, c, s, pairs, Int("lit", (0,)), width),
    "ErfPlus": _erf_plus, "Cubic": _cubic, "TanhPlus": _tanh_plus,
    "Scores": _scores, "Biased": _biased, "SafeSoftmax": _safe_softmax,
    "RepeatKV": _repeat, "Sdpa": _sdpa,
    "Cell": lambda env, x, i, a: call("Gather", x, call("Int0", i), a),
    "Stack": lambda env, x, y, a: concat([unsqueeze(x, a), unsqueeze(y, a)], a),
    "Merged": lambda env, x: reshape(x, ints(-1, *_shape(x, env)[2:])),
    "Grouped": lambda env, x, n: reshape(x, ints(0, -1, n, *_shape(x, env)[2:])),
    "RSqrt": lambda env, x: call("Reciprocal", call("Sqrt", x)),
    "Center": lambda env, x: x - _mean(x),
    "Contract": lambda env, x, y: x @ y,  # of one size, as rules assume
    "Selected": lambda env, x, c, side: _selected(x, c, side, env),
    "Scaled": lambda env, x, by: x * _number(by.value(env), x, env),
    "DimT": lambda env, d: ints(int(d.value(env))),
}  # fmt: skip
