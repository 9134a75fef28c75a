"""A fuzzer whose process dies at seed 1 and hangs at seed 3, for the test of campaigns."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from campaign import Campaign, Outcome, main


def run(seed: int, shrink: float = 0) -> Outcome:
    if seed == 1:
        os.abort()
    if seed == 3:
        time.sleep(60)
    return Outcome(seed)


if __name__ == "__main__":
    main(Campaign("dying", run))
