"""What laws and sizes take for granted besides guards: texts for the report, and whether strict mode does without."""

from __future__ import annotations


class Assumption(str):
    """A text for the report. `loose`: what relies on it is left out when numbers are to be kept strictly; the text then
    says so. Of laws that is what they take of values of tensors, not of their shapes.
    """

    loose: bool

    def __new__(cls, text: str, *, loose: bool = False) -> Assumption:
        made = super().__new__(cls, f"{text} (strict does without)" if loose else text)
        made.loose = loose
        return made


# of shapes
SAME_BATCH = Assumption("q, k and v of an attention have the same batch size, and its mask has that or 1")
HEADS = Assumption("keys whose number of heads is not fixed have as many as the queries")
MASK_FITS = Assumption("a mask is no wider than the scores it is added to")
VALUES_FIT = Assumption("the values of an attention have one row for each of its weights")
# of sizes; what they are said of follows
NAMES_SHARED = "inputs that declare a size by one name have one size there"
DECLARED_SIZES = "values inside have the sizes that the file declares"
# of values
ROWS_VISIBLE = Assumption(
    "no query row is fully masked, or its value does not matter as long as it is finite", loose=True
)
SCORES_FINITE = Assumption(
    "the scores of an attention are finite, and so is what a mask adds to them, or -inf", loose=True
)
HALF_SCORES = Assumption("attention scores in float16 stay well above its lowest number", loose=True)
SMALL_SCORES = Assumption("attention scores stay well below 1e8 in magnitude", loose=True)
FINITE = Assumption("no value that a rewrite replaces is NaN or infinite", loose=True)
NO_CANCELLATION = Assumption("variances of moments, mean(x^2) - mean(x)^2, are not lost to rounding", loose=True)
SUMS_REORDERED = Assumption("sums of three are not lost to rounding in another order", loose=True)
ZERO_SIGNS = Assumption("whether a zero is negative does not matter", loose=True)
