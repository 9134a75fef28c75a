"""The inputs of a model: what each is for, and which sizes of them fit together.

How the graph uses an input (`Use`) decides its role; where the graph leaves it open, its name does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ...egraph.errors import ModelError
from ..model.operators import ASKING, CACHED, MOVED, SOFTMAX, scales_trailing_axes, tables
from ..model.tensors import elements

Dims = Mapping[str, int | Sequence[int]]


# ---- how inputs are used


@dataclass
class Use:
    """What the graph does with an input.

    `limits` are pairs (size, offset): value + offset indexes an axis of that size (None: unknown).
    """

    limits: list[tuple[int | str | None, int]] = field(default_factory=list)
    divides: bool = False
    flag_like: bool = False  # compared or cast to bool
    other: bool = False  # used in any way that is neither index, comparison nor shape query
    additive: bool = False
    masks: bool = False  # reaches a softmax


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The constant a value holds."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Constant" and "value" in node.attributes:
        return node.attributes["value"].as_tensor()
    return value.const_value if value is not None else None


def _dim(value: ir.Value | None, axis: int) -> int | str | None:
    """The size of an axis: an integer, a symbol, or None where nothing says."""
    while value is not None:
        tensor, node = _tensor(value), value.producer()
        shape = tensor.shape if tensor is not None else value.shape
        if shape is not None:
            size = shape[axis] if -len(shape) <= axis < len(shape) else None
            return size if size is None or isinstance(size, int) else size.value
        value = node.inputs[0] if node is not None and node.op_type in ("Cast", "Identity") else None
    return None


def _index_limit(node: ir.Node, operand: int) -> int | str | None:
    table = node.inputs[tables(node)[operand]]
    if node.op_type in ("GatherND", "ScatterND"):  # every column indexes an axis of its own
        sizes = [_dim(table, axis) for axis in range(len(table.shape or ()) if table is not None else 0)]
        return min((s for s in sizes if isinstance(s, int)), default=None)
    return _dim(table, node.attributes.get_int("axis", 0) or 0)


def _trace(model: ir.Model, start: ir.Value) -> Use:
    use, seen, todo = Use(), set[tuple[int, int, bool]](), [(start, 0, True)]
    while todo:
        value, offset, exact = todo.pop()  # exact: value - offset is still the input's own number
        if (id(value), offset, exact) in seen:
            continue
        seen.add((id(value), offset, exact))
        for at in value.uses():
            node, operand, op = at.node, at.idx, at.node.op_type
            function = model.functions.get(node.op_identifier())
            if function is not None:
                todo.append((function.inputs[operand], offset, exact))
            elif op in SOFTMAX:
                use.masks = use.other = True
            elif op in ("Shape", "Size"):
                continue
            elif exact and operand in tables(node):
                use.limits.append((_index_limit(node, operand), offset))
            elif exact and (
                op in ASKING or (op, operand) == ("Where", 0)
                or (op == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL.value)
            ):  # fmt: skip
                use.flag_like = True
                todo += [(out, 0, False) for out in node.outputs]
            elif exact and (op == "Concat" or operand in MOVED.get(op, ())):
                todo += [(out, offset, True) for out in node.outputs]
            else:
                shifts = op == "Add" or (op, operand) == ("Sub", 0)
                by = _tensor(node.inputs[1 - operand]) if exact and shifts else None
                if by is not None and by.size == 1 and by.dtype.is_integer():
                    step = int(elements(by).item())
                    todo.append((node.outputs[0], offset + (step if op == "Add" else -step), True))
                    continue
                use.other |= exact
                use.divides |= exact and op in ("Div", "Mod") and operand == 1
                use.additive |= exact and op == "Add"
                todo += [(out, 0, False) for out in node.outputs]
    return use


def _forced_dim(value: ir.Value, axis: int, rank: int) -> int | None:
    """The size a weight next to the input forces on an axis."""
    for use in value.uses():
        node, operand, op, size = use.node, use.idx, use.node.op_type, 0
        if operand in CACHED.get(op, ()) and axis in (1, 3) and (size := _cache_size(node, operand, axis)):
            return size
        others = [t for i, v in enumerate(node.inputs) if i != operand and (t := _tensor(v)) is not None]
        weight = others[0].shape.numpy() if others else ()
        if not weight:
            continue
        if op == "MatMul" and len(weight) > 1 and operand == 0 and axis == rank - 1:
            size = weight[-2]
        elif op == "MatMul" and len(weight) > 1 and operand == 1 and axis == rank - 2:
            size = weight[-1]
        elif op == "Gemm" and operand == 0 and axis == 1:
            size = weight[1] if node.attributes.get_int("transB", 0) else weight[0]
        elif op == "Conv" and operand == 0 and axis == 1:
            size = weight[1] * (node.attributes.get_int("group", 1) or 1)
        elif scales_trailing_axes(op):
            back = rank - axis
            size = weight[-back] if back <= len(weight) and weight[-back] > 1 else 0
        if size:
            return size
    return None


def _cache_size(node: ir.Node, operand: int, axis: int) -> int:
    """The heads (1) of a cache, or their size (3); 0 if what is appended does not say."""
    place, attribute = CACHED[node.op_type][operand]
    heads, new = node.attributes.get_int(attribute, 0) or 0, node.inputs[place]
    if axis == 1 or not heads or new is None or new.shape is None:
        return heads if axis == 1 else 0
    width = new.shape[-1]
    return width // heads if isinstance(width, int) else 0


def _forced_rank(value: ir.Value) -> int | None:
    """The rank a weight next to the input forces on it."""
    for use in value.uses():
        weight = _tensor(use.node.inputs[1]) if len(use.node.inputs) > 1 and use.idx == 0 else None
        if use.node.op_type in ("Conv", "ConvTranspose", "Gemm") and weight is not None:
            return len(weight.shape.numpy())
    return None


# ---- sizes


def symbols_of(text: int | str) -> set[str]:
    """The symbols of a dim: those of an expression such as "past + seq", else the text itself; none of a number."""
    if isinstance(text, int):
        return set()
    if not re.search(r"[+*/(]|\s-\s", text):  # "batch-size" and "dim.1" are names
        return {text}
    try:
        dim = ir.SymbolicDim(text)
        names = set(dim.free_symbols())
        return names if isinstance(dim.evaluate(dict.fromkeys(names, 1)), int) else {text}
    except (ValueError, ZeroDivisionError):  # no expression after all
        return {text}


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int) or dim in sizes:
        return dim if isinstance(dim, int) else sizes[dim]
    size = ir.SymbolicDim(dim).evaluate(sizes)
    assert isinstance(size, int), f"{dim}: not all its symbols have a size"
    return size


class ModelInputs:
    """The inputs of a model with their roles, and the sizes its dims may take.

    Beside a cache, a mask covers cache and new tokens together. Each of the three lengths may be a symbol, a part
    of an expression or a number, and `sizes` makes them fit.
    """

    def __init__(self, model: ir.Model, dims: Dims) -> None:
        self.values = [v for v in model.graph.inputs if not v.is_initializer()]
        # before IR 4 every initializer had to be listed as an input, so the list says nothing
        self.defaults = [v for v in model.graph.inputs if v.is_initializer() and (model.ir_version or 0) >= 4]
        self.uses = {name_of(v): _trace(model, v) for v in self.values}
        self.dims = {k: [v] if isinstance(v, int) else list(v) for k, v in dims.items()}
        self._ranks = {name_of(v): _forced_rank(v) for v in self.values if v.shape is None}
        axis_of: dict[str, set[int]] = {}
        holders: dict[str, list[ir.Value]] = {}
        self.forced: dict[str, int] = {}
        for value in self.values:
            for axis, dim in enumerate(self.shape(value, 0)):
                for name in symbols_of(dim):
                    axis_of.setdefault(name, set()).add(axis)
                    holders.setdefault(name, []).append(value)
                rank = self._ranks.get(name_of(value)) if value.shape is None else len(value.shape)
                if isinstance(dim, str) and rank is not None:
                    size = _forced_dim(value, axis, rank)
                    if size is not None and symbols_of(dim) == {dim}:
                        self.forced[dim] = size
        unknown = sorted(set(self.dims) - set(axis_of))
        if unknown:
            known = ", ".join(map(repr, axis_of)) or "none"
            raise ModelError(f"dims: no input has a dim named {unknown[0]!r}; the inputs' dims: {known}")
        of_masks = [s for s in axis_of if all(self.is_mask(v) for v in holders[s])]
        self.past = [s for s in axis_of if _CACHE.search(s) and s not in of_masks and s not in self.forced]
        named = [s for s in axis_of if re.search(r"batch|^(b|n|bs)$", s, re.I)]
        self.batch = named or [s for s in axis_of if axis_of[s] == {0} and s not in self.past]
        self.batch += [s for s in axis_of if s.endswith("[0]") and s not in self.batch]
        rest = [s for s in axis_of if s not in self.past and s not in self.batch]
        only_mask = [s for s in rest if s in of_masks]
        self.seq = [s for s in rest if s not in only_mask] or only_mask
        self.seq.sort(key=_of_encoder)  # the decoder's own length leads
        self.cached, self.new = self._cached(), self._new(only_mask)
        self.covering = {name_of(v) for v in self.values if self._covers_cache(v, only_mask)}
        if self.cached is not None and self.new is not None:
            last = {s for v in self.values if name_of(v) in self.covering for s in symbols_of(self.shape(v, 0)[-1])}
            self.total = [s for s in only_mask if s in last]
            # with the new tokens' number fixed, other lengths that only masks have are those of the queries
            self.queries = [s for s in only_mask if s not in last and isinstance(self.new, int)]
        else:
            self.total, self.queries = [], []
        self.seq = [s for s in dict.fromkeys([*self.seq, *only_mask]) if s not in (*self.total, *self.queries)]
        self.seq.sort(key=_of_encoder)
        fixed = {*self.dims, *self.forced, *([self.new] if self.cached is not None else [])}
        #: Symbols whose sizes nothing else depends on, the likelier ones to be changed first.
        self.free = [set(self.seq) - fixed, set(self.batch) - fixed]

    def _cached(self) -> int | str | None:
        """The length of the decoder's cache; None if it has none."""
        own = [s for s in self.past if not s.endswith("[0]")]
        if own:
            return min(own, key=_of_encoder)
        for value in self.values:
            name, dims = name_of(value), self.shape(value, 0)
            if _CACHE.search(name) and not _of_encoder(name) and len(dims) > 2 and not is_integer(value):
                # new keys are appended along the cache's axis of positions
                joined = [u.node.attributes.get_int("axis", -2) for u in value.uses() if u.node.op_type == "Concat"]
                axis = joined[0] if joined and joined[0] is not None else -2
                return dims[axis] if -len(dims) <= axis < len(dims) else None
        return None

    def _new(self, only_mask: Sequence[str]) -> int | str | None:
        """How many new tokens there are: the length of the ids, or of what is embedded already."""
        plain = [v for v in self.values if not self.is_mask(v) and not self.is_position(v)]
        plain = [v for v in plain if not _CACHE.search(name_of(v)) and not _of_encoder(name_of(v))]
        ids = [v for v in plain if is_integer(v) and len(self.shape(v, 0)) == 2]
        embedded = [v for v in plain if not is_integer(v) and len(self.shape(v, 0)) == 3]
        if ids or embedded:
            return self.shape([*ids, *embedded][0], 0)[1]
        return next((s for s in self.seq if s not in only_mask), None)

    def _covers_cache(self, value: ir.Value, only_mask: Sequence[str]) -> bool:
        """Whether a mask's last axis runs along cache and new tokens."""
        dims = self.shape(value, 0)
        if self.cached is None or self.new is None or not self.is_mask(value) or value.shape is None or len(dims) < 2:
            return False
        last = dims[-1]
        if _of_encoder(name_of(value)) or _of_encoder(str(last)) or last in (self.new, self.cached):
            return False
        return isinstance(last, int) or bool(symbols_of(last) & {*only_mask, *self.past})

    def shape(self, value: ir.Value, turn: int) -> list[int | str]:
        """Declared dims; unnamed ones are called input[axis]. An unknown rank is another one every turn."""
        if value.shape is None:
            rank = self._ranks.get(name_of(value))
            return [f"{value.name}[{axis}]" for axis in range((2, 3, 1, 0, 4)[turn % 5] if rank is None else rank)]
        dims = enumerate(value.shape)
        return [d if isinstance(d, int) else d.value or f"{value.name}[{i}]" for i, d in dims]

    def is_mask(self, value: ir.Value) -> bool:
        use = self.uses[name_of(value)]
        flag = is_integer(value) and use.flag_like and not use.other and not use.limits
        return flag or "mask" in name_of(value).lower()

    def is_position(self, value: ir.Value) -> bool:
        named = re.search(r"position|pos_?ids|(^|_)pos$", name_of(value), re.I) is not None
        return named and is_integer(value)

    def sizes(self, batch: int, seq: int, past: int, turn: int, square: bool = False) -> dict[str, int]:
        """A size for every symbol; those of `dims` go first, then what the three lengths demand of each other. With
        `square` all lengths but that of the past are `seq`.
        """
        sizes: dict[str, int] = {}
        sizes |= dict.fromkeys(self.batch, batch) | dict.fromkeys(self.past, past)
        for at, name in enumerate(self.seq):
            axis = re.search(r"\[(\d+)\]$", name)  # unnamed dims at the same axis agree, the likeliest guess
            at = int(axis.group(1)) - 1 if axis else at
            sizes[name] = seq if at == 0 or square else (3, 6, 1, 4)[(turn + at) % 4]
        for value in self.values:
            if value.shape is None:
                rest = (seq, seq, seq) if square else (3, 4, 2)
                for dim, size in zip(self.shape(value, turn), (batch, seq, *rest), strict=False):
                    sizes[str(dim)] = size
        sizes.update(self.forced)
        stride = 1
        for name, values in self.dims.items():
            sizes[name] = values[turn // stride % len(values)]
            stride *= len(values)
        if self.cached is not None and self.new is not None:
            self._fit(sizes)
        return sizes

    def _fit(self, sizes: dict[str, int]) -> None:
        assert self.cached is not None
        assert self.new is not None
        spans = [self.shape(v, 0)[-1] for v in self.values if name_of(v) in self.covering]
        for span in spans:
            if symbols_of(span) <= set(self.dims):
                self._shorten(size_of(span, sizes), sizes)
        total = size_of(self.cached, sizes) + size_of(self.new, sizes)
        for name in self.queries:
            sizes.setdefault(name, size_of(self.new, sizes))
        for span in spans:
            for name in symbols_of(span) & set(self.total) - set(self.dims):
                others = {**dict.fromkeys(self.total, 0), **sizes}
                fitting = (n for n in range(total + 1) if size_of(span, {**others, name: n}) == total)
                sizes[name] = next(fitting, total)

    def _shorten(self, total: int, sizes: dict[str, int]) -> None:
        """Fit cache and new tokens into a mask of a given length, as far as they are free."""
        new, cached = self.new, self.cached
        if isinstance(new, str) and new in sizes and new not in self.dims:
            room = total - size_of(cached, sizes) if isinstance(cached, int) or cached in self.dims else total
            sizes[new] = max(min(sizes[new], room) if isinstance(cached, str) else room, 0)
        if isinstance(cached, str) and cached in sizes and cached not in self.dims:
            rest = total - size_of(new or 0, sizes)
            sizes |= {s: rest for s in self.past if s not in self.dims and not _of_encoder(s) and rest >= 0}


_CACHE = re.compile(r"past|cache", re.I)


def _of_encoder(name: str) -> bool:
    return re.search(r"^enc|encoder|cross", name, re.I) is not None


def name_of(value: ir.Value) -> str:
    return value.name or ""


def is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()
