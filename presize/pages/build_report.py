"""Renders report.html: images read, stored, left out and lost, and their similarity to the sources. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.codecs.source_facts import COLORS, KINDS, PROCESSES, companion_losses, loss_sentences, losses, unpack_facts
from presize.formatting import factor_text, plural, size_text
from presize.options import KEEP, size_words
from presize.pages import charts
from presize.pages.charts import Numbers, median
from presize.pages.comparison import DIFFERENCE_GAIN, Comparison, Failure
from presize.pages.html import template
from presize.store.manifest import Manifest
from presize.store.rejects import IMAGE_SUFFIXES, left_out_text
from presize.store.rejects_file import Rejects

# Lower values are a warning. Of 1,000 ImageNet photographs at 256 px the minimum was 0.93 at quality 90; at quality 75,
# one in forty was below 0.9 (November 2026).
LOW_SSIM = 0.9
_WORTH_SAVING = 0.85  # a lower quality is suggested if it would store less than this share of the bytes
_WORTH_BUILDING = 0.95  # a dataset with more than this share of its sources' bytes saves no space


def _warnings(
    manifest: Manifest, index: pa.Table, comparisons: Sequence[Comparison], failures: Sequence[Failure]
) -> list[str]:
    said, left_out = [], manifest.left_out
    if rejected := left_out["rejected"]:
        said.append(f"{plural(rejected, 'image')} could not be stored")
    if unreadable := left_out.get("unreadable", 0):
        said.append(f"{plural(unreadable, 'file')} could not be read; run the build again to retry")
    if outside := left_out["outside"]:
        said.append(
            f"{plural(outside, 'file')} outside class folders, not stored; --labels none stores all, without labels"
        )
    if low := sum(one.ssim < LOW_SSIM for one in comparisons):
        said.append(f"{low} of {len(comparisons)} compared images differ from their sources (SSIM below {LOW_SSIM})")
    if failures:
        said.append(f"{plural(len(failures), 'image')} could not be compared")
    if not comparisons and not failures:
        said.append("no image was small enough to be compared")
    lost = losses(index.column("source_facts").to_numpy(), manifest.identity["options"]["image"])
    packed = {c.name: index.column(f"{c.name}_source_facts").to_numpy() for c in manifest.companions}
    return said + loss_sentences(lost, {name: companion_losses(facts) for name, facts in packed.items()})


def report_columns(index: pa.Table) -> dict[str, Numbers]:
    """Return the index columns that the page needs, and two masks: ``same_size`` for images with the size of their
    source, and ``unchanged`` for images stored without encoding them again."""
    names = ("width", "height", "source_width", "source_height", "nbytes", "source_nbytes", "source_facts")
    found = {name: index.column(name).to_numpy() for name in names}
    same = (found["width"] == found["source_width"]) & (found["height"] == found["source_height"])
    return found | {"same_size": same, "unchanged": same & (unpack_facts(found["source_facts"], "kept") == 1)}


def _qualities(columns: Mapping[str, Numbers]) -> Numbers:
    """Return the JPEG quality of each source that is encoded again; 0 if it has none."""
    return unpack_facts(columns["source_facts"], "quality")[~columns["unchanged"]]


def leaner_quality(columns: Mapping[str, Numbers], image: Mapping[str, Any]) -> int | None:
    """Return a sufficient JPEG quality for the sources that are encoded again: their median, rounded to the nearest 5,
    plus 5. None if that is not below the stored quality, if fewer than half of them are JPEGs, or for other formats."""
    quality = _qualities(columns)
    found = quality[quality > 0]
    if image["format"] != "jpeg" or not len(found) or 2 * len(found) < len(quality):
        return None
    enough = 5 * round(median(found) / 5) + 5
    return enough if enough < image["quality"] else None


def _hints(
    columns: Mapping[str, Numbers], size: str, image: Mapping[str, Any], comparisons: Sequence[Comparison]
) -> list[str]:
    """Return hints for storing fewer bytes at little loss, estimated from the compared images. Files that are stored
    unchanged keep their size."""
    stored, sources = int(columns["nbytes"].sum()), int(columns["source_nbytes"].sum())
    said = []
    if stored > _WORTH_BUILDING * sources:
        smaller = "" if size == str(KEEP) else "; a smaller --size would store less"
        said.append(f"storing saves no space: {size_text(sources)} became {size_text(stored)}{smaller}")
    quality = leaner_quality(columns, image)
    tried = [(one.nbytes, one.leaner_nbytes) for one in comparisons if one.leaner_nbytes is not None]
    if quality is None or not tried:
        return said
    encoded, leaner = np.sum(tried, axis=0)
    again = int(columns["nbytes"][~columns["unchanged"]].sum())
    share = 1 - again / stored * (1 - leaner / encoded)
    if share <= _WORTH_SAVING:
        found = _qualities(columns)
        said.append(
            f"the sources are JPEGs of quality {median(found[found > 0]):.0f}, stored at {image['quality']}: --quality "
            f"{quality} would store {share:.0%} of the bytes, estimated from {plural(len(tried), 'image')}"
        )
    return said


def _saving(source_bytes: int, stored_bytes: int) -> tuple[str, str]:
    ratio = source_bytes / max(stored_bytes, 1)
    if 1 / 1.05 < ratio < 1.05:
        return "As large as before", f"{1 / ratio:.0%}"
    return ("Smaller by", f"{factor_text(ratio)} ×") if ratio > 1 else ("Larger by", f"{factor_text(1 / ratio)} ×")


PAIRS, WORST = 16, 3
REASONS, PATHS = 20, 5

_SUFFIXES = {
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "tiff": (".tif", ".tiff"),
    "ppm": (".ppm", ".pgm", ".pbm", ".pnm"),
    "jpeg2000": (".jp2",),
    "heic": (".heic", ".heif", ".hif"),
    "other": (".sgi", ".pcx"),
}
_KIND_NAMES = {
    "jpeg2000": "JPEG 2000", "webp": "WebP", "jxl": "JPEG XL", "other": "another format", "unknown": "unknown",
}  # fmt: skip
_TURNS = (
    "unchanged",
    "mirrored, left to right",
    "turned by 180°",
    "mirrored, top to bottom",
    "mirrored along the diagonal",
    "turned clockwise by 90°",
    "mirrored along the other diagonal",
    "turned anticlockwise by 90°",
)
_COLORS_DONE = {
    "rgb": {"grey": "three equal channels", "RGB": "unchanged"},
    "gray": {"grey": "unchanged", "RGB": "luma (ITU-R 601)"},
    "keep": {"grey": "unchanged, one channel", "RGB": "unchanged"},
    "rgba": {"grey": "three equal channels, alpha added", "RGB": "unchanged, alpha added"},
}


def build_page(
    manifest: Manifest,
    index: pa.Table,
    rejects: Rejects,
    comparisons: Sequence[Comparison],
    failures: Sequence[Failure],
) -> str:
    """Return the page as HTML. `index` has at least one row. Equal builds give equal pages: they contain no date and no
    path of this machine. Names and reasons may be hostile: they are escaped."""
    image = manifest.identity["options"]["image"]
    columns = report_columns(index)
    warnings = _warnings(manifest, index, comparisons, failures)
    left_out = sum(manifest.left_out.get(name, 0) for name in ("rejected", "unreadable", "outside"))
    said = [f"{plural(manifest.samples, 'image')} stored", *([f"{left_out:,} left out"] if left_out else [])]
    quality = unpack_facts(columns["source_facts"], "quality")
    quality = quality[quality > 0]
    source_bytes = int(columns["source_nbytes"].sum())
    shards = [*manifest.shards, *(shard for companion in manifest.companions for shard in companion.shards)]
    worst = sorted(comparisons, key=lambda one: (one.ssim, one.psnr, one.path))[:WORST]
    order = rejects.order()
    is_skipped = rejects.is_skipped.to_numpy(zero_copy_only=False)[order]
    return template("build.html").render(
        manifest=manifest,
        image=image,
        target=size_words(manifest.size) + ("" if manifest.size == str(KEEP) else f", {image['fit']}"),
        headline=", ".join([*said, plural(len(warnings), "warning") if warnings else "no warnings"]),
        warnings=warnings,
        hints=_hints(columns, manifest.size, image, comparisons),
        left_out=left_out_text(manifest.left_out),
        classes=_classes(manifest, index),
        source_bytes=source_bytes,
        disk_bytes=manifest.index.bytes + (sum(shard.bytes for shard in shards) or manifest.bytes),
        saving=_saving(source_bytes, manifest.bytes),
        sizes=_sizes(columns),
        qualities=quality,
        quality_chart=charts.linear("Estimated quality", "", {"sources": quality}, 1) if len(quality) else None,
        low_quality=int((quality < image["quality"]).sum()),
        conversions=_conversions(manifest, index.column("path"), columns),
        rejects=reject_groups(rejects, order[~is_skipped]),
        skipped=reject_groups(rejects, order[is_skipped]),
        pairs=sorted(comparisons[:PAIRS], key=lambda one: one.path),
        comparisons=comparisons,
        parity=_parity(comparisons),
        failures=failures[:PATHS],
        missed=len(failures),
        worst=[one for one in worst if one.psnr != float("inf")],
        gain=DIFFERENCE_GAIN,
        shown_paths=PATHS,
        made=[
            *(
                (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
                for name, value in image.items()
            ),
            ("layout", manifest.layout + (f", {plural(len(manifest.shards), 'shard')}" if manifest.shards else "")),
            ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
            ("digest", manifest.digest),
        ],
    )


def _classes(manifest: Manifest, index: pa.Table) -> str:
    classes = manifest.classes
    if classes is None:
        return "no classes"
    counts = np.bincount(index.column("label").to_numpy(), minlength=len(classes))
    low, high = int(counts.min()), int(counts.max())
    of = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{plural(len(classes), 'class', 'classes')} of {of} images"


def _sizes(columns: Mapping[str, Numbers]) -> list[charts.Histogram]:
    found = []
    for title, unit, a, b, side in (
        ("Shorter side", " px", "width", "height", np.minimum),
        ("Longer side", " px", "width", "height", np.maximum),
        ("Bytes per image", "", "nbytes", "nbytes", np.minimum),
    ):
        prefixes = {"sources": "source_", "stored": ""}
        series = {name: side(columns[prefix + a], columns[prefix + b]) for name, prefix in prefixes.items()}
        found.append(charts.logarithmic(title, unit, series))
    return found


def _conversions(
    manifest: Manifest, paths: pa.ChunkedArray, columns: Mapping[str, Numbers]
) -> dict[str, list[tuple[str, int, str, str]]]:
    """Return groups by name: rows of (property, number of images, what the build did, path of the first image)."""
    image, color = manifest.identity["options"]["image"], manifest.identity["options"]["image"]["color"]
    is_keep = manifest.size == str(KEEP)
    fact = partial(unpack_facts, columns["source_facts"])
    kinds, colors, orientation, process = map(fact, ("kind", "colors", "orientation", "process"))
    area = columns["width"].astype(np.int64) * columns["height"]
    source_area = columns["source_width"].astype(np.int64) * columns["source_height"]
    same_size, unchanged = columns["same_size"], columns["unchanged"]
    quality = f", quality {image['quality']}" if image["format"] in ("jpeg", "webp") else ""
    stored = f"stored as {_kind_name(image['format'])}{quality}"
    jpeg = (kinds == KINDS.index("jpeg")) & ~unchanged
    other = "converted to grey" if color == "gray" else "converted to RGB"
    antialiased = "" if image["filter"] == "nearest" else ", antialiased"
    names = ("colours unknown", *COLORS[1:])
    others = [(number, name) for number, name in enumerate(KINDS) if name != "jpeg"]
    groups: dict[str, list[tuple[str, Numbers, str]]] = {
        "Format": [
            *((f"JPEG, {name}", jpeg & (process == number), stored) for number, name in enumerate(PROCESSES)),
            *((_kind_name(name), (kinds == number) & ~unchanged, stored) for number, name in others),
            ("already in the stored format" if is_keep else "small and plain JPEG", unchanged, "stored unchanged"),
            ("extension of another format", _misnamed(paths, kinds), "decoded by content"),
            ("animation or several pages", fact("several") == 1, "the first frame was stored"),
            ("JPEG with stray bytes", fact("tolerated") == 1, "decoded by the lenient decoder"),
        ],
        "Colour": [
            *((name, colors == number, _COLORS_DONE[color].get(name, other)) for number, name in enumerate(names)),
            ("colour profile (ICC)", fact("profile") == 1, "ignored" if "icc" in image else "converted to sRGB"),
            ("transparency", fact("transparent") == 1, "kept" if color == "rgba" else "composited on white"),
            ("more than 8 bits per channel", fact("deep") == 1, "kept" if "depth" in image else "scaled to 8"),
            ("additional bands", fact("surplus") == 1, "left out"),
        ],
        "Orientation": [
            ("upright" if value == 1 else f"EXIF orientation {value}", orientation == value, done)
            for value, done in enumerate(_TURNS, 1)
        ],
        "Size": [
            ("larger than stored", area < source_area, f"resized, {image['filter']}{antialiased}"),
            ("same size as stored", same_size, "size kept"),
            ("smaller than stored", (area >= source_area) & ~same_size, "enlarged or padded"),
        ],
    }
    found: dict[str, list[tuple[str, int, str, str]]] = {group: [] for group in groups}
    for group, rows in groups.items():
        for what, mask, done in rows:
            if mask.any():
                found[group].append((what, int(mask.sum()), done, paths[int(mask.argmax())].as_py()))
    return found


def _kind_name(kind: str) -> str:
    return _KIND_NAMES.get(kind, kind.upper())


def _misnamed(paths: pa.ChunkedArray, kinds: Numbers) -> Numbers:
    """Return a mask of the names whose extension is of another image format than their content."""
    names = pc.utf8_lower(paths)
    wrong = np.zeros(len(paths), bool)
    for number in set(kinds.tolist()) - {KINDS.index("unknown")}:
        kind = KINDS[number]
        others = sorted(IMAGE_SUFFIXES - set(_SUFFIXES.get(kind, (f".{kind}",))))
        found = pc.match_substring_regex(names, rf"({'|'.join(map(re.escape, others))})$")
        wrong |= (kinds == number) & found.to_numpy()
    return wrong


def reject_groups(rejects: Rejects, rows: Numbers) -> dict[str, Any]:
    """Return the most frequent reasons of the rejects in `rows` (ordered by path), with counts and first paths."""
    reason = rejects.columns.column("reason")
    numbers = reason.indices.to_numpy()[rows]
    found, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    groups = []
    for k in np.lexsort((first, -counts))[:REASONS]:
        paths = rejects.take(rows[numbers == found[k]][:PATHS])
        groups.append((reason.dictionary[found[k]].as_py(), int(counts[k]), [reject.path for reject in paths]))
    return {"total": len(rows), "groups": groups, "other": len(rows) - sum(count for _, count, _ in groups)}


def _parity(comparisons: Sequence[Comparison]) -> dict[str, Any] | None:
    """Return median and minimum of the SSIM, and charts of the comparisons; None without comparisons."""
    if not comparisons:
        return None
    psnr = np.array([one.psnr for one in comparisons])
    ssim = np.array([one.ssim for one in comparisons])
    finite = psnr[np.isfinite(psnr)]
    return {
        "ssim": (median(ssim), float(ssim.min())),
        "identical": len(psnr) - len(finite),
        "charts": [
            *([charts.linear("PSNR of images that differ", " dB", {"images": finite}, 0.5)] if len(finite) else []),
            charts.linear("SSIM", "", {"images": ssim}, 0.001),
        ],
    }
