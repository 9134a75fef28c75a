"""The exception tree. Every error a caller may meet is an EGraphError with a one-line message."""

from __future__ import annotations

#: Characters of a message: what is longer, such as a name of a million letters, loses its middle.
_LONGEST = 2000


def one_line(text: str) -> str:
    """The text on one line that no terminal obeys, whatever names and paths are in it: a line break becomes a space,
    what else cannot be printed is escaped as in Python.
    """
    if len(text) > _LONGEST:
        text = f"{text[: 3 * _LONGEST // 4]} ... {text[-_LONGEST // 4 :]}"
    if text.isprintable():
        return text
    first, *rest = text.splitlines()
    text = " ".join([first.rstrip(), *filter(None, map(str.strip, rest))])
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class EGraphError(Exception):
    """Base of all errors raised on purpose. The message names the node, op, opset or file, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ModelError(EGraphError):
    """The input model cannot be read: truncated, cyclic, external data missing or outside the model's folder."""


class RuleError(EGraphError):
    """A rule is ill-formed (unbound variable, wrong sort), or a rule name given by the caller does not exist."""


class UnsoundMerge(EGraphError):
    """Two different facts (dtype, rank, dim, value) met in one e-class: the rule named in the message is false."""


class Contradiction(UnsoundMerge):
    """The facts a graph was loaded with contradict each other before any rule has run.

    `term` is the first whose facts, and its operands', do not go together.
    """

    def __init__(self, message: str, term: int) -> None:
        super().__init__(message)
        self.term = term


class CostError(EGraphError):
    """A cost model is none, or gives an operator no usable cost."""


class TableError(EGraphError):
    """A table of measured prices is missing, damaged, or of another machine."""


class ExtractionError(EGraphError):
    """No finite term exists for a root e-class."""


class TargetError(EGraphError):
    """An unknown execution target."""


class VerificationError(EGraphError):
    """The optimized model's numbers differ from the original's."""


class OutputError(EGraphError):
    """The result cannot be written where the caller asked."""
