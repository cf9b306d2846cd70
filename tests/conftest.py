"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A red run of CI names a change, not a throw of the dice; elsewhere examples are new each time.
settings.register_profile("ci", derandomize=True, database=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
