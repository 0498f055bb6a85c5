"""Options cannot be built wrong: every error tells the option and the value."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import OptionError
from presize.measure.bench_options import BenchOptions
from presize.option_fields import stated_options
from presize.options import (
    KEEP,
    MAX_SIDE,
    BuildOptions,
    Companion,
    DeriveOptions,
    ErrorBudget,
    ImageOptions,
    RunOptions,
    SampleOptions,
    Size,
    SourceOptions,
)


@pytest.mark.parametrize(
    ("text", "size", "reason"),
    [
        ("256", Size(256, 256), "a square"),
        ("320x240", Size(height=240, width=320), "width first, as is usual"),
        ("320X240", Size(height=240, width=320), "any case"),
        (" 256\n", Size(256, 256), "surrounding space is ignored"),
        ("0256", Size(256, 256), "leading zeros are ignored"),
        ("keep", KEEP, "images keep their own"),
    ],
)
def test_a_size_is_parsed(text: str, size: Size, reason: str) -> None:
    assert Size.parse(text) == size, reason


NO_SIZES = ["", " ", "x", "256x", "x256", "256x256x3", "-1", "+1", "1.5", "1e3", "25_6", "²", "٣", "1 x 2", "9" * 10]
NO_BUDGETS = ["", "%", "-1", "1.5", "101%", "100.1%", "1e2%", "0x1", "nan%", "٣", "1 %", "%5", "5%%"]


@pytest.mark.parametrize(
    ("parse", "expected", "texts"),
    [
        (Size.parse, "size: expected N or WxH", NO_SIZES),
        (ErrorBudget.parse, "max_errors: expected a count or a percentage", NO_BUDGETS),
    ],
    ids=["size", "max_errors"],
)
def test_an_invalid_text_is_refused_with_the_text(
    parse: Callable[[str], object], expected: str, texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(OptionError, match=expected) as caught:
            parse(text)
        assert str(caught.value).endswith(repr(text))


@given(text=st.text() | st.text("0123456789xX .-%"))
def test_any_text_is_a_value_or_an_option_error_of_one_line(text: str) -> None:
    for parse in (Size.parse, ErrorBudget.parse):
        try:
            parse(text)
        except OptionError as error:
            assert_one_line(error)


@given(height=st.integers(1, MAX_SIDE), width=st.integers(1, MAX_SIDE))
def test_a_size_reads_back_as_written(height: int, width: int) -> None:
    for size in (Size(height, width), KEEP):
        assert Size.parse(str(size)) == size


def refused(kind: Any) -> Callable[..., Callable[[], object]]:
    """Return a function that takes options, and returns one that creates a `kind` of them."""
    return functools.partial(functools.partial, kind)


image, build, run, source, budget = map(refused, (ImageOptions, BuildOptions, RunOptions, SourceOptions, ErrorBudget))
WRONG = [
    (image(fit="longest"), "fit", "'longest'", "no such choice"),
    (image(fit=None), "fit", "None", "a choice has to be made"),
    (image(fit=["crop"]), "fit", "['crop']", "one choice, not a list of them"),
    (image(format="jpg"), "format", "'jpg'", "the format's name, not a suffix"),
    (image(format="\x1b[31m\n"), "format", "\\x1b[31m\\n", "nor what a terminal would obey"),
    (image(quality=0), "quality", "0", "from 1 up"),
    (image(quality=101), "quality", "101", "up to 100"),
    (image(quality=True), "quality", "True", "a truth value is no number"),
    (image(quality="90"), "quality", "'90'", "a number, not its text"),
    (image(max_pixels=math.inf), "max_pixels", "inf", "a whole number"),
    (image(tiles="no"), "tiles", "'no'", "the text would count as true"),
    (image(upscale="no"), "upscale", "'no'", "the text would count as true"),
    (image(keep_metadata=True, format="raw"), "keep_metadata", "raw", "raw pixels have no room for it"),
    (image(color="keep", format="webp"), "color", "keep", "WebP would make grey images RGB"),
    (image(color="rgba"), "color", "jpeg", "JPEG has no transparency"),
    (image(depth=16), "depth", "jpeg", "JPEG has 8 bits"),
    (image(depth=16, format="webp"), "depth", "webp", "WebP has 8 bits"),
    (image(sizes=()), "sizes", "none", "there would be nothing to store"),
    (image(sizes=(256,)), "sizes", "256", "a number is no size"),
    (image(sizes=("256",)), "sizes", "'256'", "text is for Size.parse"),
    (image(sizes=Size(256, 256)), "sizes", "256", "one size has to lie in a tuple"),
    (image(sizes=((256, 256),)), "sizes", "(256, 256)", "height and width have to be told apart"),
    (image(sizes=[Size(256, 256)]), "sizes", "[Size(height=256, width=256)]", "a list could change later"),
    (image(sizes=(Size(0, 9),)), "sizes", "0", "no pixels"),
    (image(sizes=(Size(9, 16384),)), "sizes", "16384", "WebP ends at 16383"),
    (image(sizes=(Size(9, 9.5),)), "sizes", "9.5", "half a pixel"),
    (image(sizes=(Size(9, 9), Size(8, 8), Size(9, 9))), "sizes", "9, 8, 9", "two would share a folder"),
    (build(image={}), "image", "{}", "not a dict"),
    (build(layout="tar"), "layout", "'tar'", "no such layout"),
    (build(layout="folder", image=ImageOptions(format="raw")), "layout", "raw", "raw pixels are no image file"),
    (build(shard_samples=2**31), "shard_samples", str(2**31), "rows are 32-bit numbers"),
    (run(jobs=5000), "jobs", "5000", "more than any machine takes"),
    (run(engine="dask"), "scheduler", "tcp://HOST:8786", "where is it?"),
    (run(engine="ray", scheduler=""), "scheduler", "HOST:6379", "where is it?"),
    (run(scheduler="tcp://host:1"), "scheduler", "'tcp://host:1'", "processes have none"),
    (run(engine="spark", scheduler="yarn", jobs=3), "jobs", "3", "the cluster decides"),
    (run(timeout_s="x"), "timeout_s", "'x'", "seconds are a number"),
    (lambda: Companion("mask", 5), "pair", "5", "a pattern is text"),  # type: ignore[arg-type]
    (lambda: DeriveOptions(only=5), "only", "5", "no list"),  # type: ignore[arg-type]
    (lambda: DeriveOptions(classes="abc"), "classes", "'abc'", "each letter would be a class"),
    (lambda: Size.parse(256), "size", "256", "only texts are parsed"),  # type: ignore[arg-type]
    (run(max_errors=5), "max_errors", "5", "a count or a fraction? ErrorBudget says"),
    (source(repeated="list"), "repeated", "list", "class folders have no rows"),
    (source(repeated="list", labels="none"), "repeated", "list", "nor has a source without labels"),
    (source(labels=5), "labels", "5", "no path"),
    (source(classes="abc"), "classes", "'abc'", "each letter would be a class"),
    (source(classes=[5]), "classes", "5", "class names are text"),
    (source(labels="none", classes=["a"]), "classes", "none", "nothing would be numbered"),
    (source(split="train=1.5"), "split", "train=1.5", "more than all"),
    (source(split=0.9), "split", "0.9", "whose share?"),
    (source(split_seed=-1), "split_seed", "-1", "from 0 up"),
    (source(split="folders", split_seed=1), "split_seed", "train=0.9", "folders are not drawn"),
    (budget(count=-1), "max_errors", "-1", "fewer than none"),
    (budget(share=1.01), "max_errors", "1.01", "more than all"),
    (budget(share=math.nan), "max_errors", "nan", "it compares with nothing"),
    (budget(share="1%"), "max_errors", "'1%'", "text is for ErrorBudget.parse"),
    (budget(count=1, share=0.5), "max_errors", "1 and 0.5", "which of the two?"),
]


@pytest.mark.parametrize(("make", "option", "value", "reason"), WRONG)
def test_a_wrong_option_is_refused_by_name_and_value(
    make: Callable[[], object], option: str, value: str, reason: str
) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert str(caught.value).startswith(f"{option}: "), reason
    assert value in str(caught.value), reason
    assert_one_line(caught.value)


@pytest.mark.parametrize("options", [ImageOptions(), BuildOptions(), RunOptions(max_errors=ErrorBudget.parse("1%"))])
def test_created_options_cannot_be_changed_and_can_be_pickled(options: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, dataclasses.fields(options)[0].name, None)
    assert pickle.loads(pickle.dumps(options)) == options


FORMAT_1 = {
    "image": {
        "sizes": ["256"], "fit": "shorter", "filter": "bicubic", "resize_backend": "presize", "color": "rgb",
        "format": "jpeg", "quality": 90, "subsampling": "420", "tiles": "resized", "upscale": False,
        "keep_metadata": False, "max_pixels": 178_956_970,
    },
    "layout": "lmdb", "shard_samples": None, "follow_links": False, "checksum": False,
}  # fmt: skip


def test_the_recorded_options_are_those_of_format_version_1() -> None:
    assert json.dumps(BuildOptions().to_json()) == json.dumps(FORMAT_1), "existing datasets could not be updated"


@dataclasses.dataclass(frozen=True)
class LaterImageOptions(ImageOptions):
    dither: bool = False


@dataclasses.dataclass(frozen=True)
class LaterBuildOptions(BuildOptions):
    image: ImageOptions = dataclasses.field(default_factory=LaterImageOptions)
    padding_bytes: int = 0


@pytest.mark.parametrize(
    ("later", "recorded", "reason"),
    [
        (LaterBuildOptions(), {}, "at their defaults, options of later releases keep the identity"),
        (LaterBuildOptions(padding_bytes=8), {"padding_bytes": 8}, "other bytes, another identity"),
        (LaterBuildOptions(LaterImageOptions(dither=True)), {"image": {"dither": True}}, "also other bytes"),
        (LaterBuildOptions(LaterImageOptions(quality=80)), {"image": {"quality": 80}}, "an option of format version 1"),
    ],
)
def test_later_options_are_recorded_if_they_differ_from_their_default(
    later: BuildOptions, recorded: dict[str, Any], reason: str
) -> None:
    image = FORMAT_1["image"] | recorded.get("image", {})
    assert later.to_json() == FORMAT_1 | recorded | {"image": image}, reason


@given(percent=st.integers(0, 10_000), of=st.integers(1, 10_000), rejected=st.integers(0, 10_000))
def test_a_percentage_is_taken_exactly(percent: int, of: int, rejected: int) -> None:
    text = f"{percent // 100}.{percent % 100:02}%"
    for budget in (ErrorBudget.parse(text), ErrorBudget(share=percent / 10_000)):
        assert budget.allows(rejected, of) == (rejected * 10_000 <= percent * of)


def test_a_budget_reads_back_as_written() -> None:
    for values in ({"count": 0}, {"count": 12}, {"share": Fraction(57, 10_000)}, {"share": Fraction(1)}):
        assert ErrorBudget.parse(str(ErrorBudget(**values))) == ErrorBudget(**values)
    assert str(ErrorBudget(share=0.005)) == "0.5%"
    assert ErrorBudget(share=0.5).allows(1, of=2)
    assert ErrorBudget(share=0.29).allows(29, of=100)
    assert str(ErrorBudget()) == "unlimited"
    assert ErrorBudget().allows(10**9, of=10**9)
    assert ErrorBudget(count=3).allows(3, of=3) and not ErrorBudget(count=3).allows(4, of=1000)


def assert_one_line(error: Exception) -> None:
    assert str(error).isprintable()
    assert str(error)


STATED = [ImageOptions, BuildOptions, SourceOptions, RunOptions, DeriveOptions, SampleOptions, BenchOptions]


@pytest.mark.parametrize("options", STATED, ids=lambda options: options.__name__)
def test_every_field_states_its_option_and_its_docstring_says_so(options: type) -> None:
    stated = stated_options(options)
    assert [each.name for each in stated] == [field.name for field in dataclasses.fields(options)]
    for each in stated:
        assert each.statement.help.endswith((".", "]", "...")), each.name
        assert f"\n        {each.name}: {each.statement.help}\n" in (options.__doc__ or "")
