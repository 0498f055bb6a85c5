"""report.html: its content, that it is reproducible, and that no name in it can do harm."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from browsers import Watched, colors, contrast
from builds import REPORTED, SMALL, files
from mangled import mangled_files, write_mangled
from pages import HOSTILE, parsed
from pictures import save_image, smooth_image
from presize.builder.run import build_dataset
from presize.builder.shard_table import ShardDone
from presize.codecs.source_facts import COLORS, FIELDS, KINDS, PROCESSES, Facts, unpack_facts
from presize.errors import BuildError, OptionError, PresizeWarning
from presize.options import KEEP, BuildOptions, ImageOptions, RunOptions, Size, SourceOptions
from presize.pages import charts, comparison
from presize.pages.build_report import REASONS, reject_groups
from presize.sources import source_files
from presize.store.dataset import Dataset
from presize.store.manifest import read_manifest
from presize.store.rejects import Reject
from presize.store.rejects_file import Rejects
from presize.store.verify import Problem, VerifyResult, verify_dataset
from presize.system.files import open_at_once


def page_of(out: Path) -> str:
    report = read_manifest(out).report
    assert report is not None
    return (out / report.file).read_text("utf-8")


def report_of(
    source: Path, out: Path, options: BuildOptions = SMALL, run: RunOptions = REPORTED, **settings: Any
) -> str:
    """Build `source` into `out`, and return its page."""
    build_dataset(source, out, options, run, **settings)
    return page_of(out)


def counts(page: str) -> dict[str, int]:
    """Return the lines of "Conversions": the conversion, and the number of images."""
    lines = re.findall(r'<th scope="row">([^<]*)</th><td class="n"><span[^>]*></span>([\d,]+)</td>', page)
    return {unescape(what): int(count.replace(",", "")) for what, count in lines}


AT_48 = BuildOptions(ImageOptions(sizes=(Size(48, 48),)))


@pytest.fixture(scope="module")
def mangled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the mangled set at 48 px; read only."""
    place = tmp_path_factory.mktemp("mangled")
    write_mangled(place / "raw")
    build_dataset(place / "raw", place / "out", AT_48, REPORTED)
    return place / "out"


# Content


def test_it_counts_every_conversion_of_a_mangled_set(mangled: Path) -> None:
    assert counts(page_of(mangled)) == {
        "JPEG, baseline": 6,
        "JPEG, progressive": 1,
        "JPEG, arithmetic": 1,
        "PNG": 5,
        "GIF": 1,
        "WebP": 1,
        "TIFF": 1,
        "extension of another format": 1,
        "animation or several pages": 3,
        "grey": 3,
        "RGB": 10,
        "palette": 2,
        "CMYK": 1,
        "colour profile (ICC)": 1,
        "transparency": 1,
        "more than 8 bits per channel": 2,
        "upright": 14,
        "EXIF orientation 2": 1,
        "EXIF orientation 6": 1,
        "larger than stored": 15,
        "same size as stored": 1,
    }


def test_rejects_are_listed_with_their_reasons(mangled: Path) -> None:
    page = page_of(mangled)
    assert "3 image files could not be stored" in page
    told = ("cut.jpg", "broken JPEG: ", "empty.png", "the file is empty", "an HTML page, not an image", "notes.txt")
    assert [words for words in told if words not in page] == []
    assert "3 images could not be stored" in page, "it comes first"


def test_the_most_frequent_reasons_come_first_and_equally_frequent_ones_in_the_order_of_paths() -> None:
    reasons = ["once", *["often"] * 9, *(f"twice {number}" for number in range(40)), *["twice 7", "twice 39"]]
    rejects = Rejects.of(Reject(f"{number:02d}", "ImageError", reason) for number, reason in enumerate(reasons))
    found = reject_groups(rejects, np.flip(rejects.order()))
    counts = Counter(reversed(reasons)).most_common(REASONS)
    assert [(reason, count) for reason, count, _ in found["groups"]] == counts
    assert found["groups"][0][2] == ["09", "08", "07", "06", "05"]
    assert found["total"] == found["other"] + sum(count for _, count in counts) == len(reasons)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Create 6 images in two classes, to be modified."""
    for i in range(6):
        save_image(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", seed=i)
    return tmp_path / "photos"


def test_a_build_without_rejects_has_no_warnings(photos: Path, tmp_path: Path) -> None:
    page = report_of(photos, tmp_path / "out")
    assert "6 images stored, no warnings" in page and "2 classes of 3 images" in page
    assert "<h2>Rejected</h2>" not in page and "<dt>Not stored</dt>" not in page
    assert "JPEG quality of the sources" not in page, "they are PNGs"


def test_files_next_to_the_classes_are_counted_first(photos: Path, tmp_path: Path) -> None:
    for i in range(3):
        save_image(photos / f"stray {i}.png")
    with pytest.warns(PresizeWarning, match="3 images outside them"):
        page = report_of(photos, tmp_path / "out")
    assert "6 images stored, 3 left out, 1 warning" in page
    assert "3 files outside class folders, not stored; --labels none stores all" in page
    assert '<dd class="note">3 outside class folders</dd>' in page


def saved_jpegs(folder: Path, quality: int) -> Path:
    folder.mkdir()
    noise = np.random.default_rng(0)
    for i in range(4):
        pixels = smooth_image(80, 100, seed=i) + noise.integers(0, 40, (80, 100, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.jpg", quality=quality)
    return folder


def test_a_smaller_quality_is_named_with_its_measured_saving(tmp_path: Path) -> None:
    raw = saved_jpegs(tmp_path / "raw", 75)
    for number in range(2):  # stored unchanged
        save_image(raw / f"small {number}.jpg", 40, 40, seed=number, quality=60)
    page = report_of(raw, tmp_path / "out")
    found = re.search(
        r"quality 75, stored at 90: --quality 80 would store (\d+)% of the bytes, estimated from 4 images", page
    )
    assert found
    leaner = BuildOptions(replace(SMALL.image, quality=80))
    assert "--quality" not in report_of(raw, tmp_path / "leaner", leaner)
    at_80, at_90 = (read_manifest(tmp_path / out).bytes for out in ("leaner", "out"))
    assert int(found[1]) == pytest.approx(100 * at_80 / at_90, abs=1)
    assert "--quality" not in report_of(saved_jpegs(tmp_path / "high", 95), tmp_path / "of high")


def test_a_build_without_saving_says_so(tmp_path: Path) -> None:
    for number in range(3):
        save_image(tmp_path / "raw" / f"{number}.jpg", 40, 40, seed=number, quality=60)
    page = report_of(tmp_path / "raw", tmp_path / "out")
    assert "<dt>As large as before</dt><dd>" in page
    assert "Hint: storing saves no space: " in page and "a smaller --size would store less" in page
    assert "saves no space" not in report_of(saved_jpegs(tmp_path / "large", 95), tmp_path / "of large")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_charts_and_their_legends_are_distinguishable(
    scheme: str, watch: Callable[..., Watched], mangled: Path
) -> None:
    page = watch(mangled / "report.html", color_scheme=scheme).page
    marks = {number: colors(page, f".chart rect.s{number}", "fill") for number in (0, 1)}
    assert all(contrast(*mark) >= 3 for mark in marks.values())
    assert contrast(marks[0][0], marks[1][0]) >= 3
    assert contrast(*colors(page, ".chart .key span")) >= 4.5
    named = page.evaluate(
        """() => ["--s0", "--s1", "--s2", "--s3", "--s4"].map((name) => {
          const mark = document.body.appendChild(document.createElement("i"));
          mark.style.color = `var(${name})`;
          return getComputedStyle(mark).color;
        })"""
    )
    assert all(contrast(mark, marks[0][1]) >= 3 for mark in named)
    assert all(contrast(one, other) >= 1.35 for one, other in itertools.combinations(named, 2))


def test_a_pair_of_images_opens_and_closes_by_mouse_and_keyboard(
    watch: Callable[..., Watched], photos: Path, tmp_path: Path
) -> None:
    report_of(photos, tmp_path / "out")
    page = watch(tmp_path / "out" / "report.html", viewport={"width": 1200, "height": 800}).page
    pair = page.locator(".pairs summary").first
    shown = pair.locator("img").first

    def size() -> tuple[float, float]:
        box = shown.bounding_box()
        assert box is not None
        return box["width"], box["height"]

    small = size()
    pair.click()
    large = size()
    assert min(large[0] / small[0], large[1] / small[1]) > 1.5
    assert pair.bounding_box() == {"x": 0, "y": 0, "width": 1200, "height": 800}
    for key, expected in (("Enter", small), ("Space", large)):
        page.keyboard.press(key)
        assert size() == expected


def test_jpegs_stored_unchanged_are_counted_only_as_that_and_identical(tmp_path: Path) -> None:
    for name, side in (("small", 40), ("large", 100)):
        save_image(tmp_path / "raw" / f"{name}.jpg", side, side, quality=60)
    page = report_of(tmp_path / "raw", tmp_path / "out")
    found = counts(page)
    assert (found["JPEG, baseline"], found["small and plain JPEG"]) == (1, 1)
    assert "1 image is identical to the reference." in page
    assert "quantization tables of 2 JPEGs" in page
    assert "2 of them are below the stored quality of 90" in page


@pytest.mark.parametrize(
    ("fit", "format", "color"),
    [
        ("shorter", "png", "rgb"),
        ("longer", "raw", "keep"),
        ("stretch", "webp", "gray"),
        ("crop", "jpeg", "keep"),
        ("pad", "png", "gray"),
    ],
)
def test_every_way_to_store_is_compared(fit: str, format: str, color: str, mangled: Path, tmp_path: Path) -> None:
    image = ImageOptions(sizes=(Size(30, 40),), fit=fit, format=format, color=color)  # type: ignore[arg-type]
    page = report_of(mangled.parent / "raw", tmp_path / "out", BuildOptions(image))
    report = read_manifest(tmp_path / "out").report
    assert report is not None and report.rows == 16
    assert "could not be compared" not in page


def after_all_shards(disturb: Callable[[], object]) -> Callable[[ShardDone], None]:
    """Return an on_shard that disturbs a build of photos between its last shard and its report."""

    def on_shard(done: ShardDone) -> None:
        if done.number == 2:
            disturb()

    return on_shard


def test_a_partly_missing_source_is_reported_and_stops_nothing(photos: Path, tmp_path: Path) -> None:
    page = report_of(photos, tmp_path / "out", on_shard=after_all_shards((photos / "a" / "0.png").unlink))
    assert "6 images stored, 1 warning" in page
    assert "1 image could not be compared" in page
    assert "cannot be read: No such file" in page


def test_a_missing_source_stops_the_build_which_resumes(photos: Path, tmp_path: Path) -> None:
    gone = after_all_shards(lambda: photos.rename(tmp_path / "gone"))
    with pytest.raises(BuildError, match=r"^cannot read '.*' in .* again for report\.html: No such file .*; run again"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED, on_shard=gone)
    (tmp_path / "gone").rename(photos)
    assert build_dataset(photos, tmp_path / "out", SMALL, REPORTED).resumed == 6
    build_dataset(photos, tmp_path / "undisturbed", SMALL, REPORTED)
    assert files(tmp_path / "out") == files(tmp_path / "undisturbed")


def test_a_source_that_stays_unreadable_stops_the_build_and_a_rerun_is_identical(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: Counter[str] = Counter()  # remaining failures to open a photo

    def fail(path: str, flags: int) -> int:
        if failures[path] > 0:
            failures[path] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return open_at_once(path, flags)

    def fail_from_now(times: int) -> Callable[[ShardDone], None]:
        return after_all_shards(lambda: failures.update({str(path): times for path in photos.rglob("*.png")}))

    monkeypatch.setattr(source_files, "open_at_once", fail)
    build_dataset(photos, tmp_path / "undisturbed", SMALL, REPORTED)
    build_dataset(photos, tmp_path / "moment", SMALL, REPORTED, on_shard=fail_from_now(1))
    assert len(failures) == 6 and not failures.total()
    with pytest.raises(BuildError, match=r"again for report\.html: Input/output error; run again .*--no-report"):
        build_dataset(photos, tmp_path / "out", SMALL, REPORTED, on_shard=fail_from_now(1000))
    assert not (tmp_path / "out" / "manifest.json").exists()
    failures.clear()
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    assert files(tmp_path / "out") == files(tmp_path / "moment") == files(tmp_path / "undisturbed")


def test_damaged_records_are_reported(photos: Path, tmp_path: Path) -> None:
    def damage() -> None:
        for staged in (tmp_path / "out").rglob("*.tmp"):
            staged.write_bytes(bytes(staged.stat().st_size))

    page = report_of(photos, tmp_path / "out", replace(SMALL, layout="folder"), on_shard=after_all_shards(damage))
    assert "the stored record is damaged: " in page


def test_a_source_too_large_to_compare_is_skipped(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MOST_PIXELS_EACH", 1000)
    assert "no image was small enough to be compared" in report_of(photos, tmp_path / "out")


def test_a_column_of_a_label_table_may_have_any_name(photos: Path, tmp_path: Path) -> None:
    rows = [{"path": "a/0.png", "sample": "x", "psnr": 1}, {"path": "b/1.png", "sample": "y", "psnr": 2}]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = SourceOptions(labels=tmp_path / "labels.jsonl")
    assert "2 images stored" in report_of(photos, tmp_path / "out", samples=samples)


# The page


def test_it_is_well_formed_and_self_contained(mangled: Path) -> None:
    page = page_of(mangled)
    found = parsed(page)
    links = [value for name, value in found.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert links and all(link is not None and link.startswith("data:image/jpeg;base64,") for link in links)
    assert not set(found.tags) & {"script", "link", "iframe", "object", "embed", "form", "base"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "://" not in page and "@import" not in page and "url(" not in page


def test_every_picture_and_chart_has_a_text_and_it_stays_small(mangled: Path) -> None:
    page = page_of(mangled)
    for tag, words, number in (("svg", r'role="img" aria-label', 6), ("img", "alt", 2 * 16 + 3 * 3)):
        found = re.findall(rf'<{tag} [^>]*{words}="[^"]+: [^"]+"', page)
        assert len(re.findall(f"<{tag} ", page)) == len(found) == number
    assert len(page) < 500_000


def test_no_name_can_do_harm(tmp_path: Path) -> None:
    def page_of_names(name: str, names: list[str]) -> str:
        """Return the page of a build of images and broken ones with these names."""
        folder = tmp_path / name / "<script>alert(1)<"
        folder.mkdir(parents=True)
        for each in names:
            Image.fromarray(smooth_image(40, 50)).save(folder / each, "JPEG")
            (folder / f"broken {each}").write_bytes(b"\xff\xd8\xff" + b"broken")
        return report_of(tmp_path / name, tmp_path / f"{name} out")

    page = page_of_names("hostile", [*HOSTILE, "script>.jpg", "x\udcff<i>.png"])
    found = parsed(page)
    assert set(found.tags) == set(parsed(page_of_names("plain", ["0.jpg", "1.jpg", "2.jpg"])).tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    text = "".join(found.text)
    assert "<script>alert(1)</script>.jpg" in text, "all of it is present as text"
    assert "{{ 7 * 7 }}" in text and "\\u202egpj" in text and "\\xff<i>.png" in text
    assert "\u202e" not in page and "\x1b" not in page


def test_it_does_not_reveal_where_and_when_it_was_made(mangled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(mangled.parent / "raw", tmp_path / "elsewhere" / "raw"))
    assert report_of(copy, tmp_path / "deeper" / "out", AT_48) == page_of(mangled)
    assert str(mangled.parent) not in page_of(mangled)


# The report as a file of the dataset


def test_no_report_writes_none_and_changes_nothing_else(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "with", SMALL, REPORTED)
    result = build_dataset(photos, tmp_path / "without", SMALL, replace(REPORTED, report=False))
    assert (result.reports, read_manifest(tmp_path / "without").report) == ((), None)
    each, plain = files(tmp_path / "with"), files(tmp_path / "without")
    assert {name for name in each if each[name] != plain.get(name)} == {"manifest.json", "report.html"}
    assert each.keys() - plain.keys() == {"report.html"}
    assert read_manifest(tmp_path / "with").digest == read_manifest(tmp_path / "without").digest
    with pytest.raises(OptionError, match="report: expected bool, got 'no'"):
        RunOptions(report="no")  # type: ignore[arg-type]


def test_verify_checks_it(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    assert verify_dataset(tmp_path / "out") == VerifyResult(6)
    with (tmp_path / "out" / "report.html").open("a") as page:
        page.write("<!-- changed -->")
    (problem,) = verify_dataset(tmp_path / "out").problems
    assert problem.file == "report.html" and "bytes where the manifest says" in problem.what
    (tmp_path / "out" / "report.html").unlink()
    missing = Problem("report.html", "cannot be read: No such file or directory")
    assert verify_dataset(tmp_path / "out").problems == (missing,)
    assert len(list(Dataset(tmp_path / "out").pixels(range(6)))) == 6, "readers do not need it"


@pytest.mark.parametrize("layout", ["lmdb", "folder"])
def test_overwrite_replaces_it(layout: str, photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    (photos / "a" / "0.png").write_bytes(b"\xff\xd8\xff broken")
    page = report_of(photos, tmp_path / "out", replace(SMALL, layout=layout), replace(REPORTED, overwrite=True))
    assert {path.name for path in (tmp_path / "out").glob("*.html")} == {"report.html", "report-1.html"}
    assert "1 image could not be stored" in page
    build_dataset(photos, tmp_path / "out", SMALL, replace(REPORTED, overwrite=True, report=False))
    assert not list((tmp_path / "out").glob("*.html"))


def test_a_built_shard_can_be_opened_by_others_in_this_process(photos: Path, tmp_path: Path) -> None:
    import lmdb

    build_dataset(photos, tmp_path / "out", SMALL, REPORTED)
    shard = read_manifest(tmp_path / "out").shards[0].file
    with lmdb.open(str(tmp_path / "out" / shard), subdir=False, readonly=True, lock=False) as env:
        assert env.stat()["entries"] > 0


# Choice of images to compare


@given(count=st.integers(1, 3000), seed=st.integers(0, 2**32))
def test_the_requested_number_of_images_is_chosen_and_none_larger_than_allowed(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = np.sort(rng.choice(10**6, count, replace=False))
    pixels = rng.integers(1, rng.choice((1000, 10**7, 10**8)), count)
    chosen = comparison.choose(samples, pixels)
    assert len(set(chosen.tolist())) == len(chosen) <= comparison.MOST_IMAGES
    assert pixels[chosen].sum() <= comparison.MOST_PIXELS
    assert (pixels[chosen] <= comparison.MOST_PIXELS_EACH).all()
    if pixels.max() <= 1000:
        assert len(chosen) == min(count, comparison.MOST_IMAGES)
    everywhere = comparison.choose(np.arange(100_000), np.ones(100_000, np.int64))
    assert len(np.unique(everywhere // 10_000)) >= 8


# Facts


@given(
    st.builds(
        Facts, st.sampled_from(KINDS), st.sampled_from(COLORS), st.integers(1, 8), st.sampled_from(PROCESSES),
        st.integers(0, 100), *[st.booleans()] * 6,
    )
)  # fmt: skip
def test_packed_facts_are_unpacked_unchanged(facts: Facts) -> None:
    packed = np.array([facts.pack()], np.uint32)
    names = {"kind": KINDS, "colors": COLORS, "process": PROCESSES}
    for name, value in facts._asdict().items():
        number = int(unpack_facts(packed, name)[0])
        assert (names[name][number] if name in names else number) == value
    assert set(FIELDS) == set(Facts._fields)
    assert Facts(orientation=0).pack() == 0, "nothing is known"


def test_the_index_records_the_facts_of_each_source(mangled: Path) -> None:
    data = Dataset(mangled)
    facts = dict(zip(data.column("path").to_pylist(), data.numbers("source_facts").tolist(), strict=True))
    assert facts["turned.jpg"] == Facts("jpeg", "RGB", 6, "baseline", 75).pack()
    assert facts["arithmetic.jpg"] == Facts("jpeg", "grey", 1, "arithmetic", 95).pack()
    assert facts["palette.png"] == Facts("png", "palette", transparent=True).pack()
    assert set(facts) < set(mangled_files())


# Charts


NUMBERS = st.lists(st.integers(1, 10**9), min_size=1, max_size=50).map(np.array)


@given(NUMBERS, NUMBERS)
def test_each_number_is_in_one_bar(first: np.ndarray, second: np.ndarray) -> None:
    series = {"before": first, "after": second}
    for chart in (charts.logarithmic("t", " px", series), charts.linear("t", "", series, 1)):
        for number, (name, values) in enumerate(series.items()):
            bars = [bar for bar in chart.bars if bar.series == number]
            told = [re.fullmatch(rf"{name}: ([\d,]+) (from|of) .*", bar.label) for bar in bars]
            assert sum(int(match[1].replace(",", "")) for match in told if match) == len(values)
            assert all(0 <= bar.x and bar.x + bar.width <= charts.WIDTH for bar in bars)
            assert all(0 <= bar.y and bar.y + bar.height <= charts.HEIGHT for bar in bars)
        assert all(0 <= at <= 100 for at, _ in chart.ticks)


def test_a_bar_is_at_the_position_of_its_numbers() -> None:
    chart = charts.linear("t", "", {"all": np.array([*range(12), 10, 19, 19])}, 1)
    found = {bar.x: bar.label for bar in chart.bars}
    assert len(found) == 13
    assert (found[0.0], found[500.0]) == ("all: 1 of 0", "all: 2 of 10")
    assert found[950.0] == "all: 2 of 19"
    assert [text for _, text in chart.ticks] == ["0", "5", "10", "15", "20"]
    assert charts.linear("t", "", {"sources": np.full(9, 75)}, 1).summary == "sources: all 75"


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an image each: a JPEG, one of 16 bits, and one with transparency."""
    folder = tmp_path_factory.mktemp("raw")
    photo = smooth_image(90, 120)
    alpha = np.repeat(np.linspace(255, 0, 120).round().astype(np.uint8)[np.newaxis], 90, axis=0)
    cv2.imwrite(str(folder / "photo.jpg"), photo)
    cv2.imwrite(str(folder / "deep.png"), photo.astype(np.uint16) * 251)
    cv2.imwrite(str(folder / "alpha.png"), np.dstack((photo, alpha)))
    return folder


@pytest.mark.parametrize(
    ("options", "warnings", "done"),
    [
        ({"color": "rgba", "format": "png"}, 1, {"transparency": "kept", "more than 8 bits": "scaled to 8"}),
        ({"color": "rgba", "format": "png", "fit": "pad"}, 1, {"transparency": "kept"}),
        ({"depth": 16, "format": "raw"}, 1, {"transparency": "composited on white", "more than 8 bits": "kept"}),
        ({"depth": 16, "format": "png", "color": "rgba"}, 0, {"transparency": "kept", "more than 8 bits": "kept"}),
        ({"depth": 16, "format": "png", "color": "gray"}, 1, {"more than 8 bits": "kept"}),
        ({"filter": "nearest", "format": "png"}, 2, {"larger than stored": "resized, nearest<"}),
        ({"sizes": (KEEP,), "icc": "ignore"}, 2, {"already in the stored format": "stored unchanged"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) and "format" in value else None,
)
def test_stored_images_are_compared_with_an_exact_resize(
    deep: Path, options: dict[str, Any], warnings: int, done: dict[str, str], tmp_path: Path
) -> None:
    image = ImageOptions(**{"sizes": (Size(40, 40),), "resize_backend": "pillow", **options})
    page = report_of(deep, tmp_path / "out", BuildOptions(image))
    said = {0: "no warnings", 1: "1 warning<", 2: "2 warnings<"}[warnings]
    assert f"3 images stored, {said}" in page
    assert "differ from their sources" not in page and "could not be compared" not in page
    for what, how in done.items():
        row = page[page.index(f'scope="row">{what}') :]
        assert how in row[: row.index("</tr>")]
