"""Damaged files: cut, flipped, spliced, or changed field by field. Run `python tests/fuzz/damaged.py --count 20000`.

Whatever the bytes, the answer is an EGraphError of one line or a result; the file stays as it is, the process lives.
If onnxruntime runs both the damaged model and the result, they agree.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import numpy as np
import onnx
from campaign import Campaign, Outcome, main
from google.protobuf.message import Message
from judge import Session, difference
from models import draw_model, feed, graphs
from noise import noisy

from onnx_egraph import EGraphError, saturate_and_extract

MODELS = 40  # undamaged models, drawn
LARGEST = 6000  # bytes


@cache
def originals() -> tuple[int, ...]:
    """Seeds of small models."""
    found = [seed for seed in range(4 * MODELS) if len(draw_model(seed).model.SerializeToString()) <= LARGEST]
    return tuple(found[:MODELS])


@cache
def original(seed: int) -> bytes:
    return draw_model(seed).model.SerializeToString()


# ---- bytes


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(len(data)))]


def removed(data: bytes, rng: np.random.Generator) -> bytes:
    a = int(rng.integers(len(data)))
    return data[:a] + data[a + int(rng.integers(1, 40)) :]


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 2, 8]))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def overwritten(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    a = int(rng.integers(len(changed)))
    changed[a] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
    return bytes(changed)


def spliced(data: bytes, rng: np.random.Generator) -> bytes:
    other = original(int(rng.choice(originals())))
    a, b = int(rng.integers(len(data))), int(rng.integers(len(other)))
    return data[:a] + other[b : b + int(rng.integers(1, 400))] + data[a + int(rng.choice([0, 40])) :]


# ---- fields


def fields(data: bytes, rng: np.random.Generator) -> bytes:
    """One to three fields of the message are changed: cleared, doubled, moved, or given an odd value."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        place = model
        for _ in range(int(rng.integers(0, 7))):
            below = [m for m in _messages(place)]
            if not below:
                break
            place = below[int(rng.integers(len(below)))]
        _change(place, rng)
    return model.SerializeToString()


def _messages(message: Message) -> list[Message]:
    found: list[Message] = []
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            found += list(value) if field.is_repeated else [value]
    return found


def _change(message: Message, rng: np.random.Generator) -> None:
    present = [f for f, _ in message.ListFields()]
    every = [f for f in message.DESCRIPTOR.fields if f.type != f.TYPE_MESSAGE]
    field = present[int(rng.integers(len(present)))] if present and rng.random() < 0.7 else None
    if field is None:
        if not every:
            return
        field = every[int(rng.integers(len(every)))]
    value = getattr(message, field.name)
    if not field.is_repeated:
        if field.type == field.TYPE_MESSAGE or rng.random() < 0.3:
            message.ClearField(field.name)
        else:
            _set(message, field, rng)
        return
    how = rng.random()
    if len(value) and how < 0.35:
        del value[int(rng.integers(len(value)))]
    elif len(value) and how < 0.6:
        item = value[int(rng.integers(len(value)))]
        value.add().CopyFrom(item) if field.type == field.TYPE_MESSAGE else value.append(item)
    elif len(value) > 1 and how < 0.8:
        i, j = (int(k) for k in rng.permutation(len(value))[:2])
        if field.type == field.TYPE_MESSAGE:
            a, b = type(value[i])(), type(value[j])()
            a.CopyFrom(value[i]), b.CopyFrom(value[j])
            value[i].CopyFrom(b), value[j].CopyFrom(a)
        else:
            value[i], value[j] = value[j], value[i]
    elif field.type != field.TYPE_MESSAGE and len(value):
        value[int(rng.integers(len(value)))] = _odd(field, value[0], rng)
    else:
        message.ClearField(field.name)


def _set(message: Message, field: object, rng: np.random.Generator) -> None:
    name = field.name  # type: ignore[attr-defined]  # a field descriptor
    setattr(message, name, _odd(field, getattr(message, name), rng))


def _odd(field: object, value: object, rng: np.random.Generator) -> object:
    """Another value of a field: near by, extreme or empty."""
    kinds = type(field)
    kind = field.type  # type: ignore[attr-defined]  # a field descriptor
    if kind == kinds.TYPE_ENUM:
        numbers = [v.number for v in field.enum_type.values]  # type: ignore[attr-defined]
        return int(rng.choice(numbers))
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return float(rng.choice([0.0, -1.0, np.nan, np.inf, 1e38, value * 2]))
    if isinstance(value, int):
        wide = kind in (kinds.TYPE_INT64, kinds.TYPE_UINT64)
        low, high = (-(2**63), 2**63 - 1) if wide else (-(2**31), 2**31 - 1)
        if kind in (kinds.TYPE_UINT64, kinds.TYPE_UINT32):
            low, high = 0, 2 * high + 1
        options = [0, 1, 2, 7, value + 1, max(value - 1, low), -1 if low else 3, high, low, 16, 1000]
        return min(max(options[int(rng.integers(len(options)))], low), high)
    if isinstance(value, bytes):
        return bytes([value, b"", value[:-1], value + b"\0", b"\xff\xfe"][int(rng.integers(5))])
    text = str(value)
    options = [
        "",
        text + "x",
        "x",
        "Add",
        "Constant",
        "Loop",
        "ai.onnx",
        "com.microsoft",
        "/etc/passwd",
        "a\nb",
        "ü",
        text[:1],
    ]
    return options[int(rng.integers(len(options)))]


DAMAGES: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    cut, removed, flipped, overwritten, spliced, fields, fields, fields, fields, fields, fields, fields,
)  # fmt: skip


def damaged(seed: int) -> tuple[bytes, int]:
    """The bytes of a seed, and the seed of the model they were."""
    rng = np.random.default_rng([seed, 11])
    source = int(rng.choice(originals()))
    return DAMAGES[int(rng.integers(len(DAMAGES)))](original(source), rng), source


def run(seed: int, shrink: float = 0) -> Outcome:
    """Nothing is shrunk: the files are small."""
    outcome = Outcome(seed)
    data, source = damaged(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "a.onnx")
        path.write_bytes(data)
        outcome.fault, outcome.text = _fault(path, source, outcome)
        if not outcome.fault and path.read_bytes() != data:
            outcome.fault, outcome.text = "input changed", "the file is another one"
    if outcome.fault:
        outcome.text = f"{outcome.fault}: {outcome.text}\nof model {source}: {len(data)} bytes"
    return outcome


def _fault(path: Path, source: int, outcome: Outcome) -> tuple[str, str]:
    try:
        result = saturate_and_extract(path)
    except EGraphError as error:
        outcome.counts["refused"] += 1
        lines = str(error).splitlines()
        return ("", "") if len(lines) == 1 and lines[0].strip() else ("message", f"not of one line: {error}")
    except Exception as error:
        return f"raised {type(error).__name__}", str(error).replace("\n", " ")[:400]
    outcome.counts["results"] += 1
    outcome.counts["results changed"] += not result.report.unchanged
    try:
        result.save(path.with_name("b.onnx"))
    except EGraphError as error:
        return "not saved", str(error)
    except Exception as error:
        return f"saving raised {type(error).__name__}", str(error).replace("\n", " ")[:400]
    feeds = [feed(draw_model(source).inputs, case, np.random.default_rng([source, case])) for case in (0, 1)]
    try:
        before = Session(path)
        wanted = [before.run(f) for f in feeds]
    except Exception:  # onnxruntime's exceptions have no common base
        return "", ""
    model = onnx.load(path)
    if any(_strange(n.op_type) for g in graphs(model.graph) for n in g.node):
        return "", ""
    outcome.counts["compared"] += 1
    try:
        after = Session(path.with_name("b.onnx"))
        got = [after.run(f) for f in feeds]
    except Exception as error:
        return "does not run", str(error).replace("\n", " ")[:400]
    for f, a, b in zip(feeds, wanted, got, strict=True):
        spreads = None
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            if not isinstance(x, np.ndarray) or not difference(x, y, 64):
                continue
            spreads = spreads or noisy(model, f, 6, a)
            if text := difference(x, y, 64, None if spreads is None else spreads[k], special=True):
                return "numbers", f"output {k}: {text}"
    return "", ""


def _strange(op: str) -> bool:
    """The operator draws numbers at random."""
    return op.startswith("Random") or op in ("Bernoulli", "Multinomial", "Dropout")


FUZZER = Campaign("damaged", run)

if __name__ == "__main__":
    main(FUZZER)
