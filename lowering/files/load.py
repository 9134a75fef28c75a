"""Bring a model in: from a path, a ModelProto or an onnx_ir.Model, checked, inlined and sorted.

Weights in side files stay there: only their presence, place and length are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types
from onnx_ir.passes.common import TopologicalSortPass

from ...egraph.errors import ModelError, one_line
from ..declared import Kind
from ..model import wellformed
from ..model.domains import DEFAULT, keep_order, unify
from ..model.tensors import external, moved, own_names, side_file
from ..shapes.inference import GRAPH_TYPES, inner_uses
from .constants import lift
from .functions import inline
from .redeclared import complete, settle

Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model
#: The oldest opset whose operators are read; `older.renew` brings models there.
OLDEST_OPSET = 11


@dataclass(frozen=True, slots=True)
class Original:
    """A model as it was given: what a file holds, or the caller's object.

    `data` are the bytes of the file at `path`, both None if it is no file; `sides` are the files of its weights, by the
    locations it has for them.
    """

    given: onnx.ModelProto | ir.Model
    home: Path | None = None
    sides: Mapping[str, Path] = field(default_factory=dict)
    data: bytes | None = None
    path: Path | None = None

    def model(self) -> ir.Model:
        """A copy, as it stands there, that shares the weights."""
        if isinstance(self.given, ir.Model):
            return _cloned(self.given)
        model = understood(self.given)
        _check_external(model, self.home)
        if model.functions:  # onnx-ir has renamed their nodes, which onnxruntime holds to the names that are imported
            unify(model)
        return model


@dataclass(frozen=True, slots=True)
class Loaded:
    """A private copy of the model, what kind it came as ("path", "proto" or "ir"), the files its weights lie in,
    the model as it was given, and why calls of local functions are left in it.

    `opset` is that of the default domain; 0 where nodes of it are there and none is imported.
    """

    model: ir.Model
    kind: str
    opset: int
    sides: frozenset[Path]
    original: Original
    calls: tuple[str, ...] = ()


def load(source: Source, operators: Collection[Kind] = ()) -> Loaded:
    """Read and check a model. The caller's object is not changed and its weights are not copied.

    Calls of local functions are written out, but for those named as an operator of onnxruntime or of `operators`, which
    are that operator, and those that `Loaded.calls` names. Raises ModelError naming the file or node when the model
    cannot be read: missing, truncated, no outputs, a cycle, a value nothing produces, an opset newer than the installed
    onnx knows, external data missing, too short or outside the model's folder; and when it holds what would be lost:
    sparse initializers or training information.
    """
    if isinstance(source, onnx.ModelProto):
        model = _deserialize(source, "the ModelProto")
        sides = _check_external(model)
        return _prepared(model, "proto", Original(source, Path.cwd() if sides else None, dict(sides)), sides, operators)
    if isinstance(source, ir.Model):
        model = _cloned(source)
        return _prepared(model, "ir", Original(source), _check_external(model), operators)
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise ModelError(f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not an object of type {kind}")
    with _naming(source):
        model, original = _found(Path(source))
        return _prepared(model, "path", original, [*original.sides.items()], operators)


def parsed(source: str | os.PathLike[str]) -> ir.Model:
    """The model of a file as it stands there, its weights found. Raises ModelError, as `load` does."""
    with _naming(source):
        return _found(Path(source))[0]


def understood(proto: onnx.ModelProto) -> ir.Model:
    """The model of a ModelProto, unchecked; what is declared more than once is as onnxruntime takes it."""
    model = ir.from_proto(proto)
    keep_order(model, proto)
    settle(proto.graph, model.graph)
    return model


def _found(path: Path) -> tuple[ir.Model, Original]:
    data, proto = _parsed(path)
    model = _deserialize(proto, str(path))
    home = path.absolute().parent
    # a model that is a link, as in a cache of downloads, may keep its weights beside the file it leads to
    sides = _check_external(model, home, (path.parent.resolve(), path.resolve().parent))
    return model, Original(proto, home, dict(sides), data, path.absolute())


@contextmanager
def _naming(source: str | os.PathLike[str]) -> Iterator[None]:
    """A ModelError names the file."""
    try:
        yield
    except ModelError as error:
        path = os.fspath(source)
        raise error if one_line(path) in str(error) else ModelError(f"{path}: {error}") from error


def _prepared(
    model: ir.Model, kind: str, original: Original, sides: Iterable[tuple[str, Path]], operators: Collection[Kind]
) -> Loaded:  # fmt: skip
    unify(model)
    imported = _opset(model)
    if not model.graph.outputs:
        raise ModelError("the graph has no outputs, so there is nothing to compute; give a complete model")
    _check_graph(model)
    calls = inline(model, operators)
    _sort(model)
    complete(model)
    own_names(model)
    files = frozenset(path.resolve() for _, path in sides)
    opset = _opset(model) if imported else 0  # no import of a function says what onnxruntime takes for the model
    return Loaded(model, kind, opset, files, original, calls)


def write_out(model: ir.Model, operators: Collection[Kind] = ()) -> tuple[str, ...] | None:
    """Try again to write out the calls that were left, in place: in a newer operator set more functions mean the same.

    Returns why calls are still left, or None where none was written out.
    """
    before = len(model.functions)
    calls = inline(model, operators)
    if len(model.functions) == before:
        return None
    _sort(model)
    lift(model)
    own_names(model)
    return calls


def inlined(model: ir.Model) -> ir.Model:
    """The model, or a copy in which its local functions are inlined, as far as that can be done."""
    if not model.functions:
        return model
    try:
        copy = _cloned(model)
        unify(copy)
        inline(copy)
    except ModelError:
        return model
    return copy


# ---- reading


def _parsed(path: Path) -> tuple[bytes, onnx.ModelProto]:
    if "\0" in str(path):
        raise ModelError(f"{str(path)!r}: a name has no NUL character")
    try:
        if not path.is_file():
            kind = "it is a folder" if path.is_dir() else "no regular file" if path.exists() else "no such file"
            raise ModelError(f"{path}: {kind}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if not data:
        raise ModelError(f"{path}: the file is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{path}: not a complete ONNX model; was it cut short?") from error
    return data, proto


def _deserialize(proto: onnx.ModelProto, where: str) -> ir.Model:
    if not proto.HasField("graph"):
        raise ModelError(f"{where}: holds no graph; is it a complete ONNX model?")
    if proto.training_info:
        raise ModelError(f"{where}: holds training information, which would be lost; export it for inference")
    for graph in _graphs(proto):
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise ModelError(f"{where}: initializer {name!r} is sparse, which is not supported; store it dense")
    wellformed.check(proto)
    try:
        return understood(proto)
    except Exception as error:  # onnx-ir raises several kinds for what it does not know
        raise ModelError(f"{where}: cannot be understood ({_reason(error)})") from error


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    waiting = [proto.graph]
    waiting += [body for f in proto.functions for node in f.node for body in wellformed.bodies(node)]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [body for node in graph.node for body in wellformed.bodies(node)]


def _cloned(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except (ValueError, RuntimeError) as error:  # onnx-ir clones sorted graphs only
        raise ModelError(f"the onnx_ir.Model cannot be copied; is it sorted? ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    """The innermost cause, on one line: onnx-ir wraps errors in long descriptions of where they happened."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return (str(error).splitlines() or [type(error).__name__])[0]


# ---- checks


def _opset(model: ir.Model) -> int:
    imports = model.graph.opset_imports
    if not imports:
        raise ModelError("the model imports no opset, so no operator has a meaning; give a complete model")
    opset = imports.get(DEFAULT)
    if opset is None:
        graphs = [*model.graphs(), *(f.graph for f in model.functions.values())]
        return 0 if any(node.domain == DEFAULT for graph in graphs for node in graph) else OLDEST_OPSET
    return wellformed.known_opset(int(opset))


def _check_external(
    model: ir.Model, home: Path | None = None, folders: tuple[Path, ...] = ()
) -> list[tuple[str, Path]]:  # fmt: skip
    """The side files, with the locations that lead there: each is there, is long enough and lies in the model's
    `folders`, as far as those are known.

    Tensors get an absolute folder, `home` if there is one: the process may go elsewhere before the model is saved.
    """
    sizes: dict[Path, int] = {}
    found: dict[tuple[str, Path], None] = {}
    for tensor, replace in external(model):
        if home is not None:
            tensor.base_dir = str(home)
        name, location = tensor.name, str(tensor.location)
        within = Path(os.path.normpath(location)).parts[:1] != ("..",)
        if os.path.isabs(location) or not within or "\0" in location or not location:
            raise ModelError(f"tensor {name!r}: external data at {location!r} lies outside the model's folder")
        if ".." in Path(location).parts:
            raise ModelError(f"tensor {name!r}: external data at {location!r}; name the file without '..'")
        start, length = tensor.offset or 0, tensor.nbytes if tensor.length is None else tensor.length
        if start < 0 or length < tensor.nbytes:
            raise ModelError(f"tensor {name!r}: external data has {length} bytes at {start}, not {tensor.nbytes}")
        path = side_file(tensor).absolute()
        if path not in sizes:
            sizes[path] = _length(path, name)
        found[location, path] = None
        if folders and not any(path.resolve().is_relative_to(f) for f in folders):
            raise ModelError(f"tensor {name!r}: external data at {location!r} leads outside the model's folder")
        if start + length > sizes[path]:
            raise ModelError(f"tensor {name!r}: external data file {path} ends before byte {start + length}")
        if path.is_symlink():  # onnx-ir reads no links
            replace(moved(tensor, path.resolve().name, str(path.resolve().parent)))
        elif not os.path.isabs(tensor.base_dir):
            replace(moved(tensor, location, os.path.abspath(tensor.base_dir)))
    return [*found]


def _length(path: Path, tensor: str | None) -> int:
    try:
        if path.is_file():
            return path.stat().st_size
    except OSError as error:
        raise ModelError(f"tensor {tensor!r}: external data file {path} cannot be read ({error.strerror})") from error
    raise ModelError(f"tensor {tensor!r}: external data file {path} is missing; put it there, or give the model's path")


def _check_graph(model: ir.Model) -> None:
    for graph in model.graphs():
        made: set[str | None] = {*graph.initializers, *(v.name for v in graph.inputs)}
        for node in graph:
            for v in node.inputs:
                if v is not None and not wellformed.produced(v):
                    raise ModelError(f"{wellformed.label(node)}: input {v.name!r} is produced by nothing")
            for o in node.outputs:
                if o.name and o.name in made:
                    raise ModelError(f"value {o.name!r} is produced twice")
                made.add(o.name)
        for v in graph.outputs:
            if not wellformed.produced(v):
                raise ModelError(f"graph output {v.name!r} is produced by nothing")


# ---- sorting


def _sort(model: ir.Model) -> None:
    if not model.functions and _in_order(model.graph):
        return
    try:
        TopologicalSortPass()(model)
    except Exception as error:
        raise ModelError(f"the graph has a cycle through {_on_cycle(model)}; ONNX graphs are acyclic") from error


def _in_order(graph: ir.Graph) -> bool:
    """Whether each node comes after those it uses, as exporters write them; not asked of graphs with bodies."""
    before: set[ir.Node] = set()
    for node in graph:
        if any(p is not None and p not in before for v in node.inputs if v is not None for p in (v.producer(),)):
            return False
        if any(a.type in GRAPH_TYPES for a in node.attributes.values()):
            return False
        before.add(node)
    return True


def _on_cycle(model: ir.Model) -> str:
    """A node that waits for itself."""
    for graph in model.graphs():
        order = TopologicalSorter[ir.Node]()
        for node in graph:
            made = (v.producer() for v in (*node.inputs, *inner_uses(node)) if v is not None)
            order.add(node, *(p for p in made if p is not None and p.graph is graph))
        try:
            order.prepare()
        except CycleError as error:
            return wellformed.label(error.args[1][0])
    return "a subgraph"
