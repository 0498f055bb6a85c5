"""How much random input tests try: PRESIZE_TEST_EFFORT multiplies examples and seconds, 1 by default."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("PRESIZE_TEST_EFFORT", "1"))


def examples(count: int) -> int:
    """How many examples a test of Hypothesis tries: `count` in `make test`, more in `make test-all`."""
    return count * EFFORT
