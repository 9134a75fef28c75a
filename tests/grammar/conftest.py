"""The grammar is the package `grammar`; 10,000 spellings are drawn under `-m deep` only."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
