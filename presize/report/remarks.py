"""What the page of a build says first: what was left out, what was lost, and what would help. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from presize.codecs.source_facts import companion_losses, loss_sentences, losses, unpack
from presize.formatting import plural
from presize.report.charts import Numbers, median
from presize.report.comparison import Comparison, Failure
from presize.store.manifest import Manifest

LOW_SSIM = 0.9
"""Images below it are a warning. Of 1,000 ImageNet photographs at 256 px the minimum was 0.93 at quality 90; at quality
75 one in forty was below (November 2026)."""

_WORTH_SAVING = 0.85
"""A lower quality is named if it would store less than this share of the bytes."""


def headline(manifest: Manifest, warnings: Sequence[str]) -> str:
    """How many images were stored, how many files were left out that may be images, and how many warnings follow."""
    left_out = sum(manifest.left_out.get(name, 0) for name in ("rejected", "unreadable", "outside"))
    said = [f"{plural(manifest.samples, 'image')} stored", *([f"{left_out:,} left out"] if left_out else [])]
    return ", ".join([*said, plural(len(warnings), "warning") if warnings else "no warnings"])


def warnings(
    manifest: Manifest,
    facts: Numbers,
    comparisons: Sequence[Comparison],
    failures: Sequence[Failure],
    companions: Mapping[str, Numbers],
) -> list[str]:
    """The warnings; none when all is well.

    Args:
        facts: The index's column ``source_facts``.
        companions: That of each companion.
    """
    said = []
    rejected, outside = manifest.left_out["rejected"], manifest.left_out["outside"]
    if rejected:
        said.append(f"{plural(rejected, 'image')} could not be stored")
    if unreadable := manifest.left_out.get("unreadable", 0):
        said.append(f"{plural(unreadable, 'file')} could not be read; the command that built this tries them again")
    if outside:
        said.append(
            f"{plural(outside, 'file')} outside class folders, not stored; --labels none stores all, without labels"
        )
    low = sum(one.ssim < LOW_SSIM for one in comparisons)
    if low:
        said.append(f"{low} of {len(comparisons)} compared images differ from their sources (SSIM below {LOW_SSIM})")
    if failures:
        said.append(f"{plural(len(failures), 'image')} could not be compared")
    if not comparisons and not failures:
        said.append("no image was small enough to be compared")
    lost = losses(facts, manifest.identity["options"]["image"])
    return said + loss_sentences(lost, {name: companion_losses(packed) for name, packed in companions.items()})


def leaner_quality(facts: Numbers, image: Mapping[str, Any]) -> int | None:
    """The JPEG quality that would do for sources like these: 5 above the median of theirs, to the nearest 5. None where
    that is not below the quality that is stored, or few of the sources are JPEGs.

    Args:
        facts: The index's column ``source_facts``.
        image: The image options of the build, as the manifest records them.
    """
    quality = unpack(facts, "quality")
    found = quality[quality > 0]
    if image["format"] != "jpeg" or 2 * len(found) < len(quality):
        return None
    enough = 5 * round(median(found) / 5) + 5
    return enough if enough < image["quality"] else None


def hints(facts: Numbers, image: Mapping[str, Any], comparisons: Sequence[Comparison]) -> list[str]:
    """What would store fewer bytes at little loss, estimated from the images that were compared."""
    quality = leaner_quality(facts, image)
    tried = [(one.nbytes, one.leaner_nbytes) for one in comparisons if one.leaner_nbytes is not None]
    if quality is None or not tried:
        return []
    stored, leaner = np.sum(tried, axis=0)
    if leaner > _WORTH_SAVING * stored:
        return []
    of = unpack(facts, "quality")
    return [
        f"the sources are JPEGs of quality {median(of[of > 0]):.0f}, stored at {image['quality']}: --quality {quality} "
        f"would store {leaner / stored:.0%} of the bytes, going by {plural(len(tried), 'image')}"
    ]
