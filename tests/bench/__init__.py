"""Tests of the scripts in bench/, which import each other without a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "bench"))
