"""Random models whose graph is made of calls: functions that call each other, share what they return, leave operands
and outputs out, refer to attributes, and have bodies that do all of that again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from roundtrip_models import CONSTANTS, info, norm

#: Of the function and of the model; the operators used are defined alike in all of them.
OPSETS = (17, 18)
FLOAT = onnx.AttributeProto.FLOAT


@dataclass
class _Function:
    domain: str
    name: str
    overload: str
    inputs: list[str]
    outputs: list[str]
    optional: int  # trailing inputs that only take part where they may be left out
    proto: onnx.FunctionProto = field(default_factory=onnx.FunctionProto)


class Maker:
    """`plain` models keep to what onnxruntime loads: it refuses functions that return an operand, or a value twice,
    calls with fewer outputs than the function, and, of two functions of one name, takes the wrong one.
    """

    def __init__(self, seed: int, plain: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.plain = plain
        self.functions: list[_Function] = []
        self.count = 0

    def model(self) -> onnx.ModelProto:
        for k in range(int(self.rng.integers(2, 6))):
            self._function(k)
        nodes = norm("x", "v")
        values = ["x", "v"]
        outs: list[str] = []
        for _ in range(3):
            nodes += self._call(values, [], "g")
        chosen = [*dict.fromkeys(self._pick(values[2:]) for _ in range(3))]
        outs = [*dict.fromkeys(["v", *chosen, values[-1]])]
        if int(self.rng.integers(2)):
            nodes.append(h.make_node("If", ["flag"], ["z"], name="branch", **{
                f"{side}_branch": self._body([*values], [], f"top_{side}", self.functions) for side in ("then", "else")
            }))  # fmt: skip
            outs.append("z")
        graph = h.make_graph(
            nodes, "main graph", [info("x"), h.make_tensor_value_info("flag", T.BOOL, [])],
            [info(o) for o in outs], CONSTANTS,
        )  # fmt: skip
        imports = [h.make_opsetid("", 18), h.make_opsetid("one", 1), h.make_opsetid("two", 1)]
        return h.make_model(graph, opset_imports=imports, functions=[f.proto for f in self.functions], ir_version=10)

    def _pick(self, values: list[str]) -> str:
        return values[int(self.rng.integers(len(values)))]

    def _fresh(self, base: str) -> str:
        self.count += 1
        # the same few names in all functions and in the graph, as far as one scope allows
        return f"{base}{self.count % 7}_{self.count}" if int(self.rng.integers(2)) else f"{base}_{self.count}"

    def _function(self, k: int) -> None:
        rng = self.rng
        needed, optional = int(rng.integers(1, 3)), int(rng.integers(0, 2))
        inputs = [*[f"i{j}" for j in range(needed)], *[f"o{j}" for j in range(optional)]]
        made = _Function(
            self._pick(['one', 'two']), f"F{k if self.plain or int(rng.integers(3)) else 0}", "", inputs,
            [], optional,
        )  # fmt: skip
        if any((f.domain, f.name) == (made.domain, made.name) for f in self.functions):
            made.overload = f"v{k}"
        values = inputs[:needed]
        nodes: list[onnx.NodeProto] = []
        for _ in range(int(rng.integers(1, 5))):
            nodes += self._step(values, inputs[needed:], f"f{k}", self.functions)
        own = values[needed:]
        pool = own if self.plain else values
        outputs = [self._pick(pool) for _ in range(int(rng.integers(1, 4)))]
        made.outputs = [*dict.fromkeys(outputs)] if self.plain else outputs
        default = int(rng.integers(2))
        made.proto = h.make_function(
            made.domain, made.name, inputs, made.outputs, nodes,
            [h.make_opsetid("", int(rng.choice(OPSETS))), h.make_opsetid("one", 1), h.make_opsetid("two", 1)],
            [] if default else ["slope"], [h.make_attribute("slope", 0.25)] if default else [],
            overload=made.overload,
        )  # fmt: skip
        self.functions.append(made)

    def _step(
        self, values: list[str], optional: list[str], base: str, callees: list[_Function]
    ) -> list[onnx.NodeProto]:  # fmt: skip
        """Nodes that add values."""
        choice = int(self.rng.integers(8))
        if choice < 2 and callees:
            return self._call(values, optional, base, callees)
        out = self._fresh(base)
        given = [self._pick(values), self._pick(values)]
        if choice == 2:
            condition = self._condition(given[0], base)
            node = h.make_node("If", [condition[-1].output[0]], [out], **{
                f"{side}_branch": self._body([*values], optional, f"{base}_{side}", callees)
                for side in ("then", "else")
            })  # fmt: skip
            values.append(out)
            return [*condition, node]
        if choice == 3:
            count = h.make_node("Constant", [], [self._fresh(base)], value=h.make_tensor("", T.INT64, [], [2]))
            node = h.make_node(
                "Loop", [count.output[0], "", given[0]], [out], body=self._loop([*values], optional, base, callees)
            )
            values.append(out)
            return [count, node]
        if choice == 4:
            node = h.make_node("LeakyRelu", given[:1], [out])
            node.attribute.add(name="alpha", ref_attr_name="slope", type=FLOAT)
            if base.startswith(("g", "top")):
                node.attribute[0].CopyFrom(h.make_attribute("alpha", 0.5))
        elif choice == 5:
            bound = self._fresh(base)
            nodes = [h.make_node("Constant", [], [bound], value=h.make_tensor("", T.FLOAT, [], [0.5]))]
            lower = self._pick(optional) if optional and int(self.rng.integers(2)) else ""
            node = h.make_node("Clip", [given[0], lower, bound], [out])
            values.append(out)
            return [*nodes, node]
        elif choice == 6:
            node = h.make_node(self._pick(["Add", "Sub", "Max"]), given, [out])
        else:
            node = h.make_node(self._pick(["Neg", "Abs", "Relu", "Tanh", "Identity"]), given[:1], [out])
        values.append(out)
        return [node]

    def _call(
        self, values: list[str], optional: list[str], base: str, callees: list[_Function] | None = None
    ) -> list[onnx.NodeProto]:  # fmt: skip
        rng = self.rng
        f = (callees := callees or self.functions)[int(rng.integers(len(callees)))]
        given = [self._pick(values) for _ in f.inputs[: len(f.inputs) - f.optional]]
        nodes: list[onnx.NodeProto] = []
        for _ in range(f.optional):
            match int(rng.integers(3)):
                case 0:
                    given.append("")
                case 1 if optional:
                    given.append(self._pick(optional))
                case _:
                    bound = self._fresh(base)
                    nodes.append(h.make_node("Constant", [], [bound], value=h.make_tensor("", T.FLOAT, [], [-0.75])))
                    given.append(bound)
        while given[-1] == "" and int(rng.integers(2)):
            given.pop()
        outs = [self._fresh(base) for _ in f.outputs]
        kept = int(rng.integers(len(outs)))
        outs = [o if k == kept or int(rng.integers(3)) else "" for k, o in enumerate(outs)]
        while not self.plain and not outs[-1]:
            outs.pop()
        attributes = {"slope": round(float(rng.random()), 3)} if int(rng.integers(2)) else {}
        nodes.append(h.make_node(f.name, given, outs, domain=f.domain, overload=f.overload, **attributes))
        values += [o for o in outs if o]
        return nodes

    def _condition(self, value: str, base: str) -> list[onnx.NodeProto]:
        total, zero, out = (self._fresh(base) for _ in range(3))
        return [
            h.make_node("ReduceSum", [value], [total], keepdims=0),
            h.make_node("Constant", [], [zero], value=h.make_tensor("", T.FLOAT, [], [0.625])),
            h.make_node("Greater", [total, zero], [out]),
        ]

    def _body(
        self, values: list[str], optional: list[str], base: str, callees: list[_Function]
    ) -> onnx.GraphProto:  # fmt: skip
        nodes: list[onnx.NodeProto] = []
        for _ in range(int(self.rng.integers(1, 3))):
            nodes += self._step(values, optional, base, callees)
        last = self._fresh(base)
        nodes.append(h.make_node("Neg", [values[-1]], [last]))
        return h.make_graph(nodes, base, [], [h.make_tensor_value_info(last, T.FLOAT, None)])

    def _loop(
        self, values: list[str], optional: list[str], base: str, callees: list[_Function]
    ) -> onnx.GraphProto:  # fmt: skip
        turn, go, state, stays = (self._fresh(base) for _ in range(4))
        body = self._body([*values, state], optional, base, callees)
        return h.make_graph(
            [
                h.make_node("Identity", [go], [stays]), *body.node,
                h.make_node("Add", [state, body.output[0].name], ["s"]),
            ],
            base,
            [
                h.make_tensor_value_info(turn, T.INT64, []), h.make_tensor_value_info(go, T.BOOL, []),
                h.make_tensor_value_info(state, T.FLOAT, None),
            ],
            [h.make_tensor_value_info(stays, T.BOOL, []), h.make_tensor_value_info("s", T.FLOAT, None)],
        )  # fmt: skip


def written_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions, by substituting names: an Identity for each output, and no thought of the result."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    count = 0

    def expand(
        nodes: Iterable[onnx.NodeProto], names: dict[str, str], given: dict[str, onnx.AttributeProto]
    ) -> list[onnx.NodeProto]:  # fmt: skip
        nonlocal count
        made: list[onnx.NodeProto] = []
        for node in nodes:
            new = onnx.NodeProto()
            new.CopyFrom(node)
            new.ClearField("name")
            del new.attribute[:]
            for a in node.attribute:
                b = onnx.AttributeProto()
                b.CopyFrom(given.get(a.ref_attr_name, onnx.AttributeProto()) if a.ref_attr_name else a)
                b.name = a.name
                if a.HasField("g"):
                    inner = dict(names)
                    for v in b.g.input:
                        count += 1
                        inner[v.name] = v.name = f"n{count}"
                    nodes_inside = expand(a.g.node, inner, given)
                    del b.g.node[:]
                    b.g.node.extend(nodes_inside)
                    for v in b.g.output:
                        v.name = inner.get(v.name, v.name)
                if b.type:
                    new.attribute.append(b)
            new.input[:] = [names.get(i, i) for i in node.input]
            function = functions.get((node.domain, node.op_type, node.overload))
            for k, out in enumerate(node.output):
                if out and names:
                    count += 1
                    names[out] = f"n{count}"
                new.output[k] = names.get(out, out)
            if function is None:
                made.append(new)
                continue
            inside = {i: "" for i in function.input} | dict(zip(function.input, new.input, strict=False)) | {"": ""}
            attributes = {a.name: a for a in function.attribute_proto} | {a.name: a for a in new.attribute}
            made += expand(function.node, inside, attributes)
            pairs = zip(function.output, new.output, strict=False)
            made += [h.make_node("Identity", [inside[f]], [o]) for f, o in pairs if o]
        return made

    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.functions[:], plain.graph.node[:]
    plain.graph.node.extend(expand(model.graph.node, {}, {}))
    return plain
