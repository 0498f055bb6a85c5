"""Progress bar of a build for notebooks and scripts: tqdm's, as a widget in notebooks that support widgets."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from presize.builder.plan import Plan
from presize.builder.shard_table import ShardDone
from presize.formatting import size_text


class ProgressBar:
    """Progress bar that counts the files of one build. Not thread-safe.

    >>> with ProgressBar() as bar:  # doctest: +SKIP
    ...     build_dataset("RAW", "OUT", on_plan=bar.on_plan, on_shard=bar.on_shard)

    Args:
        options: options of tqdm, such as ``desc``, ``file`` and ``disable``.
    """

    def __init__(self, **options: Any) -> None:
        self._options = {"desc": "build", "unit": "img", **options}
        self._bar: Any = None
        self._bytes = self._rejected = 0

    def on_plan(self, plan: Plan) -> None:
        from tqdm.auto import tqdm  # detects notebooks, and imports asyncio

        self._bar = tqdm(total=len(plan.source.table), **self._options)

    def on_shard(self, done: ShardDone) -> None:
        self._bytes += done.bytes
        self._rejected += done.rejected
        self._bar.set_postfix_str(f"{size_text(self._bytes)}, {self._rejected:,} rejected", refresh=False)
        self._bar.update(done.samples)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
