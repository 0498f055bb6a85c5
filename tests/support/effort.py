"""Amount of random input: PRESIZE_TEST_EFFORT multiplies examples and seconds, 1 by default."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("PRESIZE_TEST_EFFORT", "1"))


def examples(count: int) -> int:
    """Return the number of examples of a Hypothesis test: `count` in `make test`, more in `make test-all`."""
    return count * EFFORT
