"""The options of `presize build`, in groups. Those of IMAGE, STORED, SAMPLES and RUN are named like the fields of
ImageOptions, BuildOptions, SourceOptions and RunOptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from presize import options as choices
from presize.cli.group import PATH, choice, parsed
from presize.options import (
    BuildOptions,
    BuildPart,
    ColumnType,
    Coordinates,
    ErrorBudget,
    ImageOptions,
    RunOptions,
    SourceOptions,
)

if TYPE_CHECKING:
    from presize.builder.like import Likeness


def values_of(group: Iterable[click.Option], given: dict[str, Any]) -> dict[str, Any]:
    """What was given for the options of a group, by their names."""
    return {option.name: given[option.name] for option in group if option.name is not None}


def _take_over(context: click.Context, _option: click.Parameter, root: str | None) -> Likeness | None:
    """The options of the dataset in `root`, which become the defaults of all that is not given."""
    if root is None or context.resilient_parsing:
        return None
    from presize.builder.like import like_dataset

    likeness = like_dataset(root)
    context.default_map = as_typed(likeness.options)
    # Folders of masks count as class folders until pairs are known: build compares the classes then.
    if likeness.classes is not None and not any(pair.pattern for pair in likeness.options.companions):
        context.default_map["classes"] = root
    return likeness


def as_typed(options: BuildOptions) -> dict[str, Any]:
    """Options as they are typed, by the names of parameters."""
    typed = {
        field.name: getattr(owner, field.name)
        for owner in (options, options.image)
        for field in fields(owner)
        if field.name not in ("image", "companions")
    }
    return typed | {
        "sizes": list(map(str, options.image.sizes)),
        "depth": str(options.image.depth),
        "boxes": list(map(str, options.boxes)),
        "column_types": list(map(str, options.column_types)),
        "keypoints": list(map(str, options.keypoints)),
        "pairs": [f"{each.name}={each.pattern or f'column:{each.column}'}" for each in options.companions],
        "pair_formats": [f"{each.name}={each.format}" for each in options.companions],
        "pair_filters": [f"{each.name}={each.filter}" for each in options.companions],
    }


_IMAGE = ImageOptions()
_RUN = RunOptions()
_SAMPLES = SourceOptions()

IMAGE = (
    click.Option(
        ["--size", "sizes"],
        multiple=True,
        default=["256"],
        show_default=True,
        metavar="N|WxH|keep",
        help="Target size in pixels; several make OUT/SIZE each. keep: store images as they are.",
    ),
    click.Option(
        ["--fit"],
        type=choice(choices.Fit),
        default=_IMAGE.fit,
        show_default=True,
        help="How an image meets the target: by its shorter or longer side, stretched, cropped or padded.",
    ),
    click.Option(
        ["--filter"],
        type=choice(choices.Filter),
        default=_IMAGE.filter,
        show_default=True,
        help="Filter for resizing; all but nearest antialias.",
    ),
    click.Option(
        ["--resize-backend"],
        type=choice(choices.ResizeBackend),
        default=_IMAGE.resize_backend,
        show_default=True,
        help="Library that resamples.",
    ),
    click.Option(
        ["--color"],
        type=choice(choices.Color),
        default=_IMAGE.color,
        show_default=True,
        help="Channels to store; keep: one of grey images, three of others.",
    ),
    click.Option(
        ["--depth"],
        type=choice(choices.Depth),
        default=str(_IMAGE.depth),
        show_default=True,
        callback=parsed(int),
        help="Bits a channel; 16 with --format png or raw.",
    ),
    click.Option(
        ["--icc"],
        type=choice(choices.Icc),
        default=_IMAGE.icc,
        show_default=True,
        help="Convert colours from ICC profiles to sRGB, or ignore profiles as Pillow does.",
    ),
    click.Option(
        ["--format"], type=choice(choices.Format), default=_IMAGE.format, show_default=True, help="Format to store."
    ),
    click.Option(
        ["--quality"],
        type=int,
        default=_IMAGE.quality,
        show_default=True,
        metavar="Q",
        help="JPEG and WebP quality, 1 to 100.",
    ),
    click.Option(
        ["--subsampling"],
        type=choice(choices.Subsampling),
        default=_IMAGE.subsampling,
        show_default=True,
        help="JPEG chroma subsampling.",
    ),
    click.Option(
        ["--tiles"],
        type=choice(choices.Tiles),
        default=_IMAGE.tiles,
        show_default=True,
        help="JPEGs to store in tiles, so that a crop is read without the rest. --no-tiles: none.",
    ),
    click.Option(["--upscale"], is_flag=True, help="Enlarge images smaller than the target, too."),
    click.Option(["--keep-metadata"], is_flag=True, help="Keep EXIF, XMP and comments in what is stored."),
    click.Option(
        ["--max-pixels"],
        type=int,
        default=_IMAGE.max_pixels,
        show_default=True,
        metavar="N",
        help="Reject sources of more pixels.",
    ),
)
STORED = (
    click.Option(
        ["--to", "layout"],
        type=choice(choices.Layout),
        default="lmdb",
        show_default=True,
        help="LMDB shards, or ordinary image files.",
    ),
    click.Option(
        ["--shard-samples"], type=int, metavar="N", help="Samples per shard, at most.  [default: by their number]"
    ),
    click.Option(
        ["--checksum"],
        is_flag=True,
        help="Keep a checksum of each source file, for --update to compare instead of the modification time.",
    ),
    click.Option(["--follow-links"], is_flag=True, help="Follow links that lead out of SRC."),
    click.Option(
        ["--column-type", "column_types"],
        multiple=True,
        metavar="COLUMN:TYPE",
        callback=parsed(ColumnType.parse),
        help="Type of a column of labels that would be read as another: text, int, float; label:class.",
    ),
    click.Option(
        ["--boxes"],
        multiple=True,
        metavar="COLUMN:FORMAT",
        callback=parsed(Coordinates.parse_boxes),
        help="Boxes to scale with the images, in pixels: xyxy, xywh or cxcywh; in shares of the image: cxcywh% ...",
    ),
    click.Option(
        ["--keypoints"],
        multiple=True,
        metavar="COLUMN[:FORMAT]",
        callback=parsed(Coordinates.parse_keypoints),
        help="Keypoints to scale with the images: xy or xyv (visibility), xy% or xyv% in shares.  [default format: xy]",
    ),
    click.Option(
        ["--bad-boxes"],
        type=choice(choices.BadBoxes),
        default="clip",
        show_default=True,
        help="Clip boxes that reach outside of their image, or reject the image.",
    ),
)
PAIRS = (
    click.Option(
        ["--pair", "pairs"],
        multiple=True,
        metavar="NAME=PATTERN",
        help="A second image of every sample: mask=masks/{stem}.png, or mask=column:COLUMN of the label table.",
    ),
    click.Option(
        ["--pair-format", "pair_formats"],
        multiple=True,
        metavar="[NAME=]FORMAT",
        help="Format to store second images in.  [default: png]",
    ),
    click.Option(
        ["--pair-filter", "pair_filters"],
        multiple=True,
        metavar="[NAME=]FILTER",
        help="Filter for second images; nearest keeps class numbers exactly.  [default: nearest]",
    ),
)
SAMPLES = (
    click.Option(
        ["--labels"],
        type=PATH,
        metavar="TABLE|none",
        help="CSV, JSON lines or Parquet with a path column, or a list of paths (.txt): it lists the samples. none: "
        "take all images of SRC, without labels.",
    ),
    click.Option(
        ["--classes"],
        type=PATH,
        metavar="FILE|DATASET",
        help="Class list to use: one name a line, or a dataset's.",
    ),
    click.Option(
        ["--repeated"],
        type=choice(choices.Repeated),
        default=_SAMPLES.repeated,
        show_default=True,
        help="A path in several rows of TABLE: refuse it, or make the rows one sample whose columns are lists.",
    ),
    click.Option(
        ["--split"],
        metavar="folders|NAME=SHARE,...",
        help="Column of splits: by the folders of SRC (SRC/train, SRC/val), or drawn, as in train=0.9,val=0.1.",
    ),
    click.Option(
        ["--split-seed"],
        type=int,
        default=_SAMPLES.split_seed,
        show_default=True,
        metavar="N",
        help="Random seed of the shares of --split.",
    ),
    click.Option(
        ["--keys"],
        metavar="PATTERN|PRESET|NAME",
        help="Images in SRC: of an LMDB a pattern such as image-{:09d}, or text-recognition, basicsr, lsun; of tars an "
        "extension; of Parquet a column.",
    ),
    click.Option(["--label-keys"], metavar="PATTERN", help="Keys of an LMDB's labels, such as label-{:09d}."),
)
RUN = (
    click.Option(["--jobs"], type=int, metavar="N", help="Processes.  [default: all cores]"),
    click.Option(
        ["--backend", "engine"],
        type=choice(choices.Engine),
        default=_RUN.engine,
        show_default=True,
        help="What does the work: processes, which contain crashes; this one alone, which contains nothing; a cluster.",
    ),
    click.Option(
        ["--scheduler"], metavar="ADDRESS", help="The cluster's: tcp://HOST:8786, HOST:6379, spark://HOST:7077."
    ),
    click.Option(
        ["--timeout-s"],
        type=float,
        default=_RUN.timeout_s,
        show_default=True,
        metavar="S",
        help="Reject an image that takes longer, alone, too.",
    ),
    click.Option(
        ["--on-error"],
        type=choice(choices.OnError),
        default="skip",
        show_default=True,
        help="Skip images that cannot be stored, or stop at the first.",
    ),
    click.Option(
        ["--max-errors"],
        metavar="N|P%",
        callback=parsed(ErrorBudget.parse),
        help="Stop after more rejected or unreadable images than this.  [default: any number]",
    ),
    click.Option(
        ["--update"],
        is_flag=True,
        help="Bring OUT up to date with SRC: decode what is new or changed, keep the rest. Options that are not given "
        "are those that OUT was built with.",
    ),
    click.Option(
        ["--verify"],
        is_flag=True,
        help="With --update: read every record that is kept, and make damaged ones again.",
    ),
    click.Option(
        ["--overwrite"],
        is_flag=True,
        help="Replace a presize dataset once the new one is whole; a folder's files one by one.",
    ),
    click.Option(["--report/--no-report"], default=True, show_default=True, help="Write report.html about the build."),
)
LIKE = click.Option(
    ["--like"],
    is_eager=True,
    type=PATH,
    metavar="DATASET",
    callback=_take_over,
    help="Build as DATASET was built, a training set for example: with its options, and its class list. Options given "
    "beside it win.",
)
MANNER = (
    click.Option(
        ["--part"],
        metavar="I/N",
        callback=parsed(BuildPart.parse),
        help="Build part I of N, on one of several machines; the command without it publishes.",
    ),
    click.Option(
        ["--scratch"],
        type=PATH,
        metavar="DIR",
        help="Where shards are built when OUT is a URL, with room for all of them.  [default: ~/.cache]",
    ),
    click.Option(["--dry-run"], is_flag=True, help="Print the plan and an estimate; write nothing."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
)
