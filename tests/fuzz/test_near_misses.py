"""A short run of the near misses, and a long one behind `-m deep`."""

from __future__ import annotations

import pytest
from campaign import again, children, here
from near_misses import FUZZER, changed, exports

SHORT = (5, 9)  # of quick exports


@pytest.mark.parametrize("seed", SHORT)
def test_near_misses(seed: int) -> None:
    total = here(FUZZER, [seed])
    assert not total.faults, f"{total.faults[0].text}\n{again(FUZZER, seed)}"
    assert total.counts["models with a fusion"] == 1


def test_a_seed_changes_one_thing() -> None:
    a, b = changed(3, 1), changed(3, 1)
    assert a is not None
    assert b is not None
    model, said = a
    assert said == b[1]
    assert model.SerializeToString() == b[0].SerializeToString()
    assert model.SerializeToString() != exports()[3 % len(exports())].read_bytes()


@pytest.mark.deep
@pytest.mark.parametrize("part", range(4))
def test_near_misses_deep(part: int) -> None:
    found = [o for o in children(FUZZER, range(100 + 100 * part, 200 + 100 * part)) if o.fault]
    assert not found, "\n".join(f"{o.text}\n{again(FUZZER, o.seed)}" for o in found)
