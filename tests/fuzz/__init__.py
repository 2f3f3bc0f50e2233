"""Fuzzers: files, models and command lines changed at random, and jobs killed at random; ``python -m tests.fuzz``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # `helpers` is found as it is in a run of pytest
