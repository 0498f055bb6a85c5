"""report.html: what a build read, stored, left out and lost, and how similar images are to their sources. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
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

LOW_SSIM = 0.9
"""Images below it are a warning. Of 1,000 ImageNet photographs at 256 px the minimum was 0.93 at quality 90; at quality
75 one in forty was below (November 2026)."""

_WORTH_SAVING = 0.85
"""A lower quality is named if it would store less than this share of the bytes."""

_WORTH_BUILDING = 0.95
"""A dataset with more than this share of its sources' bytes saves no space."""


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
    """The warnings; none when all is well. `facts` is the index's column ``source_facts``, and `companions` has that of
    each companion."""
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


def report_columns(index: pa.Table) -> dict[str, Numbers]:
    """Return the columns of the index that the page is made from."""
    names = ("width", "height", "source_width", "source_height", "nbytes", "source_nbytes", "source_facts")
    return {name: index.column(name).to_numpy() for name in names}


def is_unchanged(columns: Mapping[str, Numbers]) -> npt.NDArray[np.bool_]:
    """Return for each image whether it is stored without having been encoded again."""
    same_size = (columns["width"] == columns["source_width"]) & (columns["height"] == columns["source_height"])
    return np.asarray((unpack_facts(columns["source_facts"], "kept") == 1) & same_size)


def leaner_quality(columns: Mapping[str, Numbers], image: Mapping[str, Any]) -> int | None:
    """Return the JPEG quality that would do for the sources that are encoded again: 5 above the median of theirs, to
    the nearest 5. None where that is not below the quality that is stored, or few of the sources are JPEGs."""
    quality = unpack_facts(columns["source_facts"], "quality")[~is_unchanged(columns)]
    found = quality[quality > 0]
    if image["format"] != "jpeg" or not len(found) or 2 * len(found) < len(quality):
        return None
    enough = 5 * round(median(found) / 5) + 5
    return enough if enough < image["quality"] else None


def hints(
    columns: Mapping[str, Numbers], size: str, image: Mapping[str, Any], comparisons: Sequence[Comparison]
) -> list[str]:
    """Return what would store fewer bytes at little loss, estimated from the images that were compared. Files that are
    stored unchanged stay as large as they are."""
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
    again = int(columns["nbytes"][~is_unchanged(columns)].sum())
    share = 1 - again / stored * (1 - leaner / encoded)
    if share <= _WORTH_SAVING:
        of = unpack_facts(columns["source_facts"], "quality")[~is_unchanged(columns)]
        said.append(
            f"the sources are JPEGs of quality {median(of[of > 0]):.0f}, stored at {image['quality']}: --quality "
            f"{quality} would store {share:.0%} of the bytes, going by {plural(len(tried), 'image')}"
        )
    return said


def saving(source_bytes: int, stored_bytes: int) -> tuple[str, str]:
    """Return how much smaller a dataset is than its sources, as a title and a factor.

    >>> [saving(*sizes) for sizes in ((89, 10), (100, 97), (100, 130))]
    [('Smaller by', '8.9 ×'), ('As large as before', '97%'), ('Larger by', '1.3 ×')]
    """
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
    "jpeg2000": "JPEG 2000", "webp": "WebP", "jxl": "JPEG XL", "other": "another format", "unknown": "not known",
}  # fmt: skip
_TURNS = (
    "as it is",
    "mirrored, left to right",
    "turned by 180°",
    "mirrored, top to bottom",
    "mirrored along the diagonal",
    "turned clockwise by 90°",
    "mirrored along the other diagonal",
    "turned anticlockwise by 90°",
)
_COLORS_DONE = {
    "rgb": {"grey": "three equal channels", "RGB": "as they are"},
    "gray": {"grey": "as they are", "RGB": "luma (ITU-R 601)"},
    "keep": {"grey": "as they are, one channel", "RGB": "as they are"},
    "rgba": {"grey": "three equal channels, and alpha", "RGB": "as they are, and alpha"},
}


@dataclass(frozen=True)
class BuildReport:
    """All that the page shows. The index has at least one row."""

    manifest: Manifest
    index: pa.Table
    rejects: Rejects
    comparisons: Sequence[Comparison]
    failures: Sequence[Failure]


@dataclass(frozen=True)
class Row:
    """A group of images: what they have in common, what the build did with them, and the path of the first."""

    what: str
    count: int
    done: str
    example: str


def build_page(report: BuildReport) -> str:
    """The page as HTML. Equal reports give equal pages: there is no date and no path of this machine in it. Names and
    reasons may be hostile: they are escaped."""
    manifest, image = report.manifest, report.manifest.identity["options"]["image"]
    columns = report_columns(report.index)
    companions = {c.name: report.index.column(f"{c.name}_source_facts").to_numpy() for c in manifest.companions}
    found = warnings(manifest, columns["source_facts"], report.comparisons, report.failures, companions)
    quality = unpack_facts(columns["source_facts"], "quality")
    source_bytes = int(columns["source_nbytes"].sum())
    shards = [*manifest.shards, *(shard for companion in manifest.companions for shard in companion.shards)]
    disk_bytes = manifest.index.bytes + (sum(shard.bytes for shard in shards) or manifest.bytes)
    worst = sorted(report.comparisons, key=lambda one: (one.ssim, one.psnr, one.path))[:WORST]
    order = report.rejects.order()
    is_skipped = report.rejects.is_skipped.to_numpy(zero_copy_only=False)[order]
    return template("build.html").render(
        manifest=manifest,
        image=image,
        target=size_words(manifest.size) + ("" if manifest.size == str(KEEP) else f", {image['fit']}"),
        headline=headline(manifest, found),
        warnings=found,
        hints=hints(columns, manifest.size, image, report.comparisons),
        left_out=left_out_text(manifest.left_out),
        classes=_classes(report),
        source_bytes=source_bytes,
        disk_bytes=disk_bytes,
        saving=saving(source_bytes, manifest.bytes),
        sizes=_sizes(columns),
        qualities=quality[quality > 0],
        quality_chart=charts.linear("Estimated quality", "", {"sources": quality[quality > 0]}, 1)
        if quality.any()
        else None,
        low_quality=int(((quality > 0) & (quality < image["quality"])).sum()),
        conversions=_conversions(report, columns),
        rejects=reject_groups(report.rejects, order[~is_skipped]),
        skipped=reject_groups(report.rejects, order[is_skipped]),
        pairs=sorted(report.comparisons[:PAIRS], key=lambda one: one.path),
        comparisons=report.comparisons,
        parity=_parity(report.comparisons),
        failures=report.failures[:PATHS],
        missed=len(report.failures),
        worst=[one for one in worst if one.psnr != float("inf")],
        gain=DIFFERENCE_GAIN,
        shown_paths=PATHS,
        made=[
            *((name.replace("_", " "), _option_text(value)) for name, value in image.items()),
            ("layout", manifest.layout + (f", {plural(len(manifest.shards), 'shard')}" if manifest.shards else "")),
            ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
            ("digest", manifest.digest),
        ],
    )


def _option_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _classes(report: BuildReport) -> str:
    classes = report.manifest.classes
    if classes is None:
        return "no classes"
    counts = np.bincount(report.index.column("label").to_numpy(), minlength=len(classes))
    low, high = int(counts.min()), int(counts.max())
    of = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{plural(len(classes), 'class', 'classes')} of {of} images"


def _sizes(columns: Mapping[str, Numbers]) -> list[charts.Histogram]:
    """Return a chart each of both sides and the bytes of images."""
    sources, stored = (
        [np.minimum(width, height), np.maximum(width, height), nbytes]
        for width, height, nbytes in (
            [columns[f"{prefix}{name}"] for name in ("width", "height", "nbytes")] for prefix in ("source_", "")
        )
    )
    titles = (("Shorter side", " px"), ("Longer side", " px"), ("Bytes an image", ""))
    return [
        charts.logarithmic(title, unit, {"sources": before, "stored": after})
        for (title, unit), before, after in zip(titles, sources, stored, strict=True)
    ]


def _conversions(report: BuildReport, columns: Mapping[str, Numbers]) -> list[tuple[str, list[Row]]]:
    image = report.manifest.identity["options"]["image"]
    paths, packed = report.index.column("path"), columns["source_facts"]
    field = functools.partial(unpack_facts, packed)
    kinds, colors, orientation, process = map(field, ("kind", "colors", "orientation", "process"))
    area = columns["width"].astype(np.int64) * columns["height"]
    source_area = columns["source_width"].astype(np.int64) * columns["source_height"]
    same_size = (columns["width"] == columns["source_width"]) & (columns["height"] == columns["source_height"])

    def row(what: str, mask: Numbers, done: str) -> Row:
        example = paths[int(mask.argmax())].as_py() if mask.any() else ""
        return Row(what, int(mask.sum()), done, example)

    stored = _kind_name(image["format"]) + (
        f", quality {image['quality']}" if image["format"] in ("jpeg", "webp") else ""
    )
    unchanged = is_unchanged(columns)
    jpeg = (kinds == KINDS.index("jpeg")) & ~unchanged
    formats = [
        row(f"JPEG, {name}", jpeg & (process == number), f"stored as {stored}") for number, name in enumerate(PROCESSES)
    ]
    formats += [
        row(_kind_name(name), (kinds == number) & ~unchanged, f"stored as {stored}")
        for number, name in enumerate(KINDS)
        if name != "jpeg"
    ]
    formats += [
        row(
            "in the stored format already" if report.manifest.size == str(KEEP) else "small and plain JPEG",
            unchanged,
            "stored unchanged",
        ),
        row("extension of another format", _misnamed(paths, kinds), "decoded by content"),
        row("animation or several pages", field("several") == 1, "the first frame was stored"),
        row("JPEG with stray bytes", field("tolerated") == 1, "decoded by the tolerant fallback"),
    ]
    done = _COLORS_DONE[image["color"]]
    grey = image["color"] == "gray"
    shades = [
        row(
            "colours unknown" if name == "unknown" else name,
            colors == number,
            done.get(name, "converted to grey" if grey else "converted to RGB"),
        )
        for number, name in enumerate(COLORS)
    ]
    shades += [
        row("colour profile (ICC)", field("profile") == 1, "ignored" if "icc" in image else "converted to sRGB"),
        row("transparency", field("transparent") == 1, "kept" if image["color"] == "rgba" else "composited on white"),
        row("more than 8 bits a channel", field("deep") == 1, "kept" if "depth" in image else "scaled to 8"),
        row("bands beside the colours", field("surplus") == 1, "left out"),
    ]
    turns = [
        row("upright" if value == 1 else f"EXIF orientation {value}", orientation == value, done)
        for value, done in enumerate(_TURNS, 1)
    ]
    antialiased = "" if image["filter"] == "nearest" else ", antialiased"
    sizes = [
        row("larger than stored", area < source_area, f"resized, {image['filter']}{antialiased}"),
        row("same size as stored", same_size, "size kept"),
        row("smaller than stored", (area >= source_area) & ~same_size, "enlarged or padded"),
    ]
    groups = {"Format": formats, "Colour": shades, "Orientation": turns, "Size": sizes}
    return [(name, [row for row in rows if row.count]) for name, rows in groups.items()]


def _kind_name(kind: str) -> str:
    return _KIND_NAMES.get(kind, kind.upper())


def _misnamed(paths: pa.ChunkedArray, kinds: Numbers) -> Numbers:
    """True for names with the extension of another image format than their content."""
    names = pc.utf8_lower(paths)
    wrong = np.zeros(len(paths), bool)
    for number in np.unique(kinds).tolist():
        kind = KINDS[number]
        if kind == "unknown":
            continue
        fits = _SUFFIXES.get(kind, (f".{kind}",))
        others = pc.match_substring_regex(
            names, rf"({'|'.join(sorted(IMAGE_SUFFIXES - set(fits)))})$".replace(".", r"\.")
        )
        wrong |= (kinds == number) & others.to_numpy()
    return wrong


def reject_groups(rejects: Rejects, rows: Numbers) -> dict[str, Any]:
    """Return the most frequent reasons of the rejects in `rows`, which are in the order of their paths, each with the
    number of files and the first of them."""
    reason = rejects.columns.column("reason")
    numbers = reason.indices.to_numpy()[rows]
    found, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    groups = []
    for k in np.lexsort((first, -counts))[:REASONS]:
        paths = rejects.take(rows[numbers == found[k]][:PATHS])
        groups.append((reason.dictionary[found[k]].as_py(), int(counts[k]), [reject.path for reject in paths]))
    return {"total": len(rows), "groups": groups, "other": len(rows) - sum(count for _, count, _ in groups)}


def _parity(comparisons: Sequence[Comparison]) -> dict[str, Any] | None:
    """Median and minimum of the SSIM, and charts of the comparisons; None if there are none."""
    if not comparisons:
        return None
    psnr = np.array([one.psnr for one in comparisons])
    ssim = np.array([one.ssim for one in comparisons])
    finite = psnr[np.isfinite(psnr)]
    return {
        "ssim": (median(ssim), float(ssim.min())),
        "identical": len(psnr) - len(finite),
        "charts": [
            *([charts.linear("PSNR of those that differ", " dB", {"images": finite}, 0.5)] if len(finite) else []),
            charts.linear("SSIM", "", {"images": ssim}, 0.001),
        ],
    }
