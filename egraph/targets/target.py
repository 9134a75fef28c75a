"""Execution targets: which operators a provider of onnxruntime runs, for which element types, and at what price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Protocol

from ..errors import CostError, TargetError
from ..terms import FLOAT, OPS, Op
from ..terms.dtypes import CODES, NAMES
from . import cpu, cuda
from .kernels import DTYPES, Kernels, expand
from .prices import Prices
from .roofline import Roofline
from .work import Work

MS = "com.microsoft"


@dataclass(frozen=True)
class Target:
    """A provider of one onnxruntime version, as (domain, op type, dtype) triples that load and run.

    The dtype is that of the op's main operand, in numpy's spelling; the default domain is "". `prices` are what a
    cost model goes by unless the caller gives another. Raises TargetError for a term it runs and has no price for.
    """

    name: str
    provider: str
    opset_max: int
    ops: frozenset[tuple[str, str, str]]
    prices: Prices = field(default_factory=lambda: cpu.PRICES, compare=False)

    def __post_init__(self) -> None:
        if strange := {dtype for _, _, dtype in self.ops} - CODES.keys():
            raise TargetError(f"target {self.name}: no element type is named {sorted(strange)[0]!r}")
        roofline = Roofline(self.prices)
        for name in sorted({name for name, _ in self.legal}):
            try:
                roofline.cost(Work(name, (), ()))
            except CostError as error:
                raise TargetError(f"target {self.name}: {error}") from error

    def supports(self, domain: str, op: str, dtype: str) -> bool:
        """Whether a node of this type and main dtype loads. "ai.onnx" is the default domain."""
        return ("" if domain == "ai.onnx" else domain, op, dtype) in self.ops

    @cached_property
    def legal(self) -> frozenset[tuple[str, int]]:
        """The same for the terms of an e-graph: (term name, ONNX number of the dtype)."""
        kinds: dict[tuple[str, str], set[int]] = {}
        for domain, op, dtype in self.ops:
            kinds.setdefault((domain, op), set()).add(CODES[dtype])
        # Which form is written depends on the model's operator set, so a term is legal where all of them are.
        legal = {
            name: set.intersection(*(kinds.get((f.domain, f.kernel), set()) for f in op.forms))
            for name, op in OPS.items() if op.forms
        }  # fmt: skip
        # An attribute is a float32, too coarse for operands of float64.
        coarse = {name for name, op in OPS.items() if op.forms and (op.single or FLOAT in op.sorts)}
        return frozenset(
            (name, code) for name, codes in legal.items() for code in codes
            if not (name in coarse and code == CODES["float64"])
        )  # fmt: skip

    def runs(self, declared: Iterable[Op] = ()) -> frozenset[tuple[str, int]]:
        """`legal`, and the same for terms that a caller declares.

        A domain of the caller's own is unknown to any target, and who declares an operator knows that it runs.
        """
        found = set(self.legal)
        for op in declared:
            if op.marker:
                continue
            form = op.forms[-1]
            known = [code for code, name in NAMES.items() if self.supports(form.domain, form.kind, name)]
            foreign = form.domain not in ("", MS)
            found.update((op.name, code) for code in (known or (NAMES if foreign else ())))
        return frozenset(found)


class RuntimeFile(Protocol):
    """What the file of a runtime defines: kernels, what runs by its body or elsewhere for want of one, and prices."""

    NAME: str
    PROVIDER: str
    OPSET_MAX: int
    KERNELS: Kernels
    BODIES: Kernels
    FALLBACK: Kernels
    PRICES: Prices


class Kernel(Protocol):
    """One entry of `onnxruntime.capi._pybind_state.get_all_opkernel_def()`."""

    @property
    def domain(self) -> str: ...
    @property
    def op_name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def version_range(self) -> tuple[int, int]: ...
    @property
    def type_constraints(self) -> Mapping[str, Sequence[str]]: ...


_LATEST = 2**31 - 1

_ORT_TYPES: Mapping[str, str] = {name: name for name in DTYPES} | {"float": "float32", "double": "float64"}
_BUILT_IN: Mapping[str, RuntimeFile] = {runtime.NAME: runtime for runtime in (cpu, cuda)}


def from_kernels(
    kernels: Iterable[Kernel], name: str = "cpu", provider: str = "CPUExecutionProvider", opset_max: int = 28
) -> Target:
    """The target of an installed onnxruntime, from its registered kernels; names as in `target`.

    Counts the newest kernel of each op, and for the CPU provider what needs none: float16 by Casts that
    onnxruntime inserts wherever it has float32, and the ops it expands into their parts. Raises TargetError
    if the provider has no kernels.
    """
    ops: set[tuple[str, str, str]] = set()
    for kernel in kernels:
        if kernel.provider != provider or kernel.version_range[1] != _LATEST:
            continue
        domain = "" if kernel.domain == "ai.onnx" else kernel.domain
        constraints = kernel.type_constraints
        types = next((constraints[key] for key in ("T", "T1", "V") if key in constraints), ())
        names = (_ORT_TYPES.get(text.removeprefix("tensor(").removesuffix(")")) for text in types)
        ops |= {(domain, kernel.op_name, dtype) for dtype in names if dtype}
    if not ops:
        raise TargetError(f"onnxruntime has no kernels for {provider}: is that provider installed?")
    ops -= expand(cpu.NOT_BY_SCHEMA)
    if provider == "CPUExecutionProvider":
        ops |= {(domain, op, "float16") for domain, op, dtype in ops if dtype == "float32"}
        ops |= expand(cpu.BODIES)
    return Target(name, provider, opset_max, frozenset(ops))


def target(name: str | Target) -> Target:
    """The built-in target of that name: "cpu" (onnxruntime 1.32) or "cuda" (its documented kernels); a Target itself.

    "cuda" was not run. It holds the documented types of the fused ops, and for the other ops of the default domain what
    the CPU provider, which onnxruntime falls back to, can load. Raises TargetError listing the known names.
    """
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise TargetError(f'target is {name!r}; a name such as "cpu", or a Target, is wanted')
    if name not in _BUILT_IN:
        raise TargetError(f"no target {name!r}; known targets: {', '.join(sorted(_BUILT_IN))}")
    return _built_in(name)


@cache
def _built_in(name: str) -> Target:
    """The same object each time: a target never changes, and what it is asked takes a while to compute."""
    runtime = _BUILT_IN[name]
    kernels = expand(runtime.KERNELS)
    named = {entry[:2] for entry in kernels}
    ops = kernels | expand(runtime.BODIES) | {e for e in expand(runtime.FALLBACK) if e[:2] not in named}
    return Target(name, runtime.PROVIDER, runtime.OPSET_MAX, frozenset(ops), runtime.PRICES)
