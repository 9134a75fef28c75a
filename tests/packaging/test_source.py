"""Laws of the source text: file size, no operator names outside the tables, no mutable module state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest

from onnx_egraph.egraph.terms import OPS

# Fused operators are named where they are declared and where a runtime's kernels and prices are. One that is no term
# stands in operators.py, by which inputs are generated; no fusion comes of it.
UNDECLARED = {
    "lowering/model/operators.py": ["EmbedLayerNormalization"],
    "lowering/shapes/contrib.py": ["FusedGemm", "FusedConv"],
    "lowering/shapes/inference.py": ["FusedConv"],
}
FUSED = re.compile(
    r"\b("
    r"RotaryEmbedding|GemmaRotaryEmbedding|(MultiHead|GroupQuery|SparseAttention|Packed(MultiHead)?|"
    r"DecoderMaskedMultiHead|DecoderMaskedSelf|QOrdered|Longformer|Linear|Paged)?Attention|"
    r"(Skip)?(Simplified)?LayerNormalization|SkipSimplifiedLayerNormalization|EmbedLayerNormalization|"
    r"RMSNormalization|SkipRMSNormalization|GroupNorm|SkipGroupNorm|"
    r"(Fast|Bias|Quick|BiasSplit)?Gelu|FusedMatMul|FusedGemm|FusedConv|SwiGLU|MoE|QMoE"
    r")\b"
)

# Laws and their guards are values, and egglog's text is printed of them last: who wants to know asks the value.
TEXT_READERS = {
    "egraph/checking/sample.py": "the language of samples, which people write",
    "egraph/engine/sexpr.py": "rules in egglog's language, which callers write",
}
STRING_READERS = {
    "startswith", "endswith", "removeprefix", "removesuffix", "replace", "split", "rsplit", "partition", "rpartition",
    "find", "rfind", "index", "rindex", "count",
}  # fmt: skip

MUTABLE_CALLS = {"list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque"}
MUTATORS = {
    "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault",
    "popitem", "add", "discard", "difference_update", "intersection_update", "symmetric_difference_update",
    "appendleft", "extendleft", "popleft",
}  # fmt: skip


def docstrings(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def fused_names(source: Any) -> list[str]:
    """Each fused operator that a string of the code names, as often as that."""
    skip = docstrings(source.tree)
    return [
        match[0]
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip
        for match in FUSED.finditer(node.value)
    ]


def read_back(source: Any) -> list[str]:
    """Places that may read egglog's text: regular expressions, and searches for a text that opens a parenthesis."""
    found = [f"{source.name}:{line}: imports re" for line, name in source.imports() if name.split(".")[0] == "re"]
    for node in ast.walk(source.tree):
        wanted: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            wanted = [node.left]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STRING_READERS:
            wanted = node.args[:1]
        for value in wanted:
            first = value.values[0] if isinstance(value, ast.JoinedStr) and value.values else value
            if isinstance(first, ast.Constant) and str(first.value).startswith("("):
                found.append(f"{source.name}:{value.lineno}: looks for {ast.unparse(value)}")
    return found


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        called = value.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return name in MUTABLE_CALLS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements run when the module is imported, also under `if`, `try` and `with`."""
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from module_level(getattr(statement, field, []))


def base_name(node: ast.expr) -> str:
    """The name that `x[i].y[j]` is a part of: "x", or "y" when x is a module (the caller matches either)."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def local_names(function: ast.AST) -> set[str]:
    """Parameters and assigned names of a function: they hide a module-level name."""
    bound = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return bound


def mutations(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """(line, name) of every in-place change of something that no enclosing function binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        hidden |= local_names(node)
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = [t for t in node.targets if isinstance(t, ast.Subscript)]
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        targets = [node.func.value]
    for target in targets:
        if (name := base_name(target)) and name not in hidden:
            yield target.lineno, name
    for child in ast.iter_child_nodes(node):
        yield from mutations(child, hidden)


def global_state(sources: list[Any]) -> list[str]:
    found = []
    shared: set[str] = set()
    for source in sources:
        for statement in module_level(source.tree.body):
            if isinstance(statement, ast.Assign):
                names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                names = [statement.target.id]
            else:
                continue
            if not is_mutable(statement.value):
                continue
            for name in names:
                if name != "__all__":
                    shared.add(name)
                    if name != name.upper():
                        found.append(f"{source.name}:{statement.lineno}: {name} is a mutable module global")
    for source in sources:
        found += [
            f"{source.name}:{node.lineno}: global {', '.join(node.names)}"
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Global)
        ]
        found += [f"{source.name}:{line}: {n} is changed" for line, n in mutations(source.tree) if n in shared]
    return found


def test_fused_operators_are_named_in_the_tables_only(sources: Any) -> None:
    found = {s.name: names for s in sources if s.folder in ("lowering", "api") and (names := fused_names(s))}
    assert found == UNDECLARED


def test_each_fused_operator_is_named_in_three_files_at_most(sources: Any) -> None:
    """Its declaration, and the kernels and prices of two runtimes."""
    files: dict[str, list[str]] = {}
    for source in sources:
        for name in set(fused_names(source)):
            files.setdefault(name, []).append(source.name)
    assert {"RotaryEmbedding", "Gelu"} <= files.keys()
    assert {name: where for name, where in files.items() if len(where) > 3} == {}


def term_sets(source: Any) -> list[str]:
    """Collections of nothing but names of terms that stand in the code: what they have in common is not declared."""
    found = []
    for node in ast.walk(source.tree):
        match node:
            case ast.Set(elts=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(keys=parts):
                words = [p.value if isinstance(p, ast.Constant) else None for p in parts]
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
                words = text.split()
            case _:
                continue
        if len(words) > 1 and all(isinstance(word, str) and word in OPS for word in words):
            found.append(f"{source.name}:{node.lineno}: {' '.join(map(str, words))}")
    return found


def test_no_set_of_terms_stands_outside_their_declarations(sources: Any) -> None:
    outside = (s for s in sources if not s.name.startswith(("egraph/terms/", "egraph/targets/")))
    assert [found for source in outside for found in term_sets(source)] == []


@pytest.mark.parametrize(
    "text",
    [
        'LAST = {"Concat", "Softmax"}',
        'if op in ("Cons", "Nil"): pass',
        'SIGNS = {"Add": " + ", "Sub": " - "}',
        'EXACT = frozenset("Neg Abs".split())',
        'f(["Op1", "OpN"])',
    ],
)
def test_the_set_check_sees_one(text: str, parse: Any) -> None:
    assert len(term_sets(parse("lowering/x.py", text))) == 1


@pytest.mark.parametrize("text", ['X = {"Concat"}', '{"Add", "Xor"}', 'words = "Add Xor".split()', 'f("Add", "Sub")'])
def test_the_set_check_lets_others_pass(text: str, parse: Any) -> None:
    assert term_sets(parse("lowering/x.py", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        'if node.op_type == "RotaryEmbedding": pass',
        'KEY = "com.microsoft::MultiHeadAttention"',
        'x = f"{domain}.SkipLayerNormalization"',
        'OPS = {"Gelu", "Add"}',
    ],
)
def test_the_name_check_sees_one(text: str, parse: Any) -> None:
    assert len(fused_names(parse("lowering/x.py", text))) == 1


def test_the_name_check_reads_code_not_prose(parse: Any) -> None:
    text = '"""Reads RotaryEmbedding."""\ndef f():\n    """Writes Gelu."""\n    return "BatchNorm"  # Gelu\n'
    assert fused_names(parse("lowering/x.py", text)) == []


def test_no_text_of_a_rule_is_read_back(sources: Any) -> None:
    readers = [s for s in sources if s.folder in ("egraph", "rules") and s.name not in TEXT_READERS]
    assert [f for s in readers for f in read_back(s)] == []


@pytest.mark.parametrize("name", TEXT_READERS)
def test_the_readers_of_text_are_read(name: str, sources: Any) -> None:
    assert any(read_back(s) for s in sources if s.name == name)


@pytest.mark.parametrize(
    "text",
    [
        "import re",
        "def f(g):\n    import re\n    return re.match('x', g)",
        "from re import compile",
        "def f(text):\n    return '(supported ' in text",
        "def f(text, k):\n    return f'({k} ' not in text",
        "def f(text):\n    return text.startswith('(source')",
        "def f(text):\n    return text.replace('((union ', '((seen ')",
    ],
)
def test_the_text_check_sees_one(text: str, parse: Any) -> None:
    assert len(read_back(parse("egraph/x.py", text))) == 1


def test_the_text_check_lets_printing_pass(parse: Any) -> None:
    text = "def f(e, known):\n    return '(' + e.head + ')' if e.head in known else f'({e.head})'.strip()\n"
    assert read_back(parse("egraph/x.py", text)) == []


def test_no_two_classes_share_a_name(sources: Any) -> None:
    files: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(source.name)
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_no_mutable_module_state(sources: Any) -> None:
    assert global_state(sources) == []


@pytest.mark.parametrize(
    "text",
    [
        "registry = []",
        "cache: dict[str, int] = {}",
        "TABLE = {}\ndef f(k):\n    TABLE[k] = 1",
        "TABLE = {}\nTABLE['a'] = 1",
        "SEEN = set()\ndef f(k):\n    SEEN.add(k)",
        "ALL = []\ndef rule(f):\n    ALL.append(f)\n    return f",
        "ALL = []\ndef f():\n    def g():\n        ALL[0].append(1)\n    return g",
        "COUNT = 0\ndef f():\n    global COUNT\n    COUNT = 1",
        "from collections import defaultdict\ntry:\n    memo = defaultdict(list)\nfinally:\n    pass",
        "X = [1]\ndef f():\n    del X[0]",
    ],
)
def test_the_state_check_sees_it(text: str, parse: Any) -> None:
    assert global_state([parse("egraph/x.py", text)]) != []


def test_the_state_check_sees_another_module_change_it(parse: Any) -> None:
    table = parse("egraph/table.py", "TABLE = {}")
    assert global_state([table]) == []
    assert global_state([table, parse("rules/x.py", "from ..egraph import table\ntable.TABLE.update(a=1)")]) != []


@pytest.mark.parametrize(
    "text",
    [
        '__all__ = ["f"]',
        "TABLE = {'a': 1}\ndef f(k):\n    return TABLE[k]",
        "NAMES = ['a']\ndef f(NAMES):\n    NAMES.append(1)",
        "ORDER = (1, 2)\ndef f():\n    out = []\n    out.append(ORDER)\n    return out",
    ],
)
def test_the_state_check_lets_tables_and_locals_pass(text: str, parse: Any) -> None:
    assert global_state([parse("egraph/x.py", text)]) == []
