"""presize build."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from presize import options as choices
from presize.cli.group import EPILOG, BuildCommand, Interrupted, InterruptedByTerm, Terminated, choice, cli, parsed
from presize.cli.printing import build_summary, print_json, print_part, print_plan, print_text
from presize.cli.progress import BuildProgress, Progress
from presize.options import (
    KEEP,
    BuildOptions,
    BuildPart,
    Coordinates,
    ErrorBudget,
    ImageOptions,
    RunOptions,
    Size,
    SourceOptions,
)

_DEFAULT = ImageOptions()
_RUN = RunOptions()
_SAMPLES = SourceOptions()


@cli.command(cls=BuildCommand, epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    default=["256"],
    show_default=True,
    metavar="N|WxH|keep",
    callback=parsed(Size.parse),
    help="Target size in pixels; several make OUT/SIZE each. keep: store images as they are.",
)
@click.option(
    "--fit",
    type=choice(choices.Fit),
    default=_DEFAULT.fit,
    show_default=True,
    help="How an image meets the target: by its shorter or longer side, stretched, cropped or padded.",
)
@click.option(
    "--filter",
    "filter_",
    type=choice(choices.Filter),
    default=_DEFAULT.filter,
    show_default=True,
    help="Filter for resizing; all but nearest antialias.",
)
@click.option(
    "--resize-backend",
    type=choice(choices.ResizeBackend),
    default=_DEFAULT.resize_backend,
    show_default=True,
    help="Library that resamples.",
)
@click.option(
    "--color",
    type=choice(choices.Color),
    default=_DEFAULT.color,
    show_default=True,
    help="Channels to store; keep: one of grey images, three of others.",
)
@click.option(
    "--depth",
    type=choice(choices.Depth),
    default=str(_DEFAULT.depth),
    show_default=True,
    callback=parsed(int),
    help="Bits a channel; 16 with --format png or raw.",
)
@click.option(
    "--icc",
    type=choice(choices.Icc),
    default=_DEFAULT.icc,
    show_default=True,
    help="Convert colours from ICC profiles to sRGB, or ignore profiles as Pillow does.",
)
@click.option(
    "--format",
    "format_",
    type=choice(choices.Format),
    default=_DEFAULT.format,
    show_default=True,
    help="Format to store.",
)
@click.option(
    "--quality",
    type=int,
    default=_DEFAULT.quality,
    show_default=True,
    metavar="Q",
    help="JPEG and WebP quality, 1 to 100.",
)
@click.option(
    "--subsampling",
    type=choice(choices.Subsampling),
    default=_DEFAULT.subsampling,
    show_default=True,
    help="JPEG chroma subsampling.",
)
@click.option(
    "--tiles",
    type=choice(choices.Tiles),
    default=_DEFAULT.tiles,
    show_default=True,
    help="JPEGs to store in tiles, so that a crop is read without the rest. --no-tiles: none.",
)
@click.option("--upscale", is_flag=True, help="Enlarge images smaller than the target, too.")
@click.option("--keep-metadata", is_flag=True, help="Keep EXIF, XMP and comments in what is stored.")
@click.option(
    "--max-pixels",
    type=int,
    default=_DEFAULT.max_pixels,
    show_default=True,
    metavar="N",
    help="Reject sources of more pixels.",
)
@click.option(
    "--to",
    "layout",
    type=choice(choices.Layout),
    default="lmdb",
    show_default=True,
    help="LMDB shards, or ordinary image files.",
)
@click.option(
    "--labels",
    metavar="TABLE|none",
    help="CSV, JSON lines or Parquet with a path column, or a list of paths (.txt): it lists the samples. none: take "
    "all images of SRC, without labels.",
)
@click.option("--classes", metavar="FILE|DATASET", help="Class list to use: one name a line, or a dataset's.")
@click.option(
    "--boxes",
    multiple=True,
    metavar="COLUMN:FORMAT",
    callback=parsed(Coordinates.parse_boxes),
    help="Boxes to scale with the images, in pixels: xyxy, xywh or cxcywh.",
)
@click.option(
    "--keypoints",
    multiple=True,
    metavar="COLUMN[:FORMAT]",
    callback=parsed(Coordinates.parse_keypoints),
    help="Keypoints to scale with the images: xy or xyv (visibility).  [default format: xy]",
)
@click.option(
    "--bad-boxes",
    type=choice(choices.BadBoxes),
    default="clip",
    show_default=True,
    help="Clip boxes that reach outside of their image, or reject the image.",
)
@click.option(
    "--repeated",
    type=choice(choices.Repeated),
    default=_SAMPLES.repeated,
    show_default=True,
    help="A path in several rows of TABLE: refuse it, or make the rows one sample whose columns are lists.",
)
@click.option(
    "--split",
    metavar="folders|NAME=SHARE,...",
    help="Column of splits: by the folders of SRC (SRC/train, SRC/val), or drawn, as in train=0.9,val=0.1.",
)
@click.option(
    "--split-seed",
    type=int,
    default=_SAMPLES.split_seed,
    show_default=True,
    metavar="N",
    help="Random seed of the shares of --split.",
)
@click.option(
    "--keys",
    metavar="PATTERN|PRESET|NAME",
    help="Images in SRC: of an LMDB a pattern such as image-{:09d}, or text-recognition, basicsr, lsun; of tars an "
    "extension; of Parquet a column.",
)
@click.option("--label-keys", metavar="PATTERN", help="Keys of an LMDB's labels, such as label-{:09d}.")
@click.option(
    "--pair",
    "pairs",
    multiple=True,
    metavar="NAME=PATTERN",
    help="A second image of every sample: mask=masks/{stem}.png, or mask=column:COLUMN of the label table.",
)
@click.option(
    "--pair-format",
    "pair_formats",
    multiple=True,
    metavar="[NAME=]FORMAT",
    help="Format to store second images in.  [default: png]",
)
@click.option(
    "--pair-filter",
    "pair_filters",
    multiple=True,
    metavar="[NAME=]FILTER",
    help="Filter for second images; nearest keeps class numbers exactly.  [default: nearest]",
)
@click.option("--follow-links", is_flag=True, help="Follow links that lead out of SRC.")
@click.option(
    "--checksum",
    is_flag=True,
    help="Keep a checksum of each source file, for --update to compare instead of the modification time.",
)
@click.option("--shard-samples", type=int, metavar="N", help="Samples per shard, at most.  [default: by their number]")
@click.option("--jobs", type=int, metavar="N", help="Processes.  [default: all cores]")
@click.option(
    "--backend",
    "engine",
    type=choice(choices.Engine),
    default=_RUN.engine,
    show_default=True,
    help="What does the work: processes, which contain crashes; this one alone, which contains nothing; a cluster.",
)
@click.option("--scheduler", metavar="ADDRESS", help="The cluster's: tcp://HOST:8786, HOST:6379, spark://HOST:7077.")
@click.option(
    "--timeout-s",
    type=float,
    default=_RUN.timeout_s,
    show_default=True,
    metavar="S",
    help="Reject an image that takes longer, alone, too.",
)
@click.option(
    "--on-error",
    type=choice(choices.OnError),
    default="skip",
    show_default=True,
    help="Skip images that cannot be stored, or stop at the first.",
)
@click.option(
    "--max-errors",
    metavar="N|P%",
    callback=parsed(ErrorBudget.parse),
    help="Stop after more rejected images than this.  [default: any number]",
)
@click.option(
    "--part",
    metavar="I/N",
    callback=parsed(BuildPart.parse),
    help="Build part I of N, on one of several machines; the command without it publishes.",
)
@click.option(
    "--scratch",
    metavar="DIR",
    help="Where shards are built when OUT is a URL, with room for all of them.  [default: ~/.cache]",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and an estimate; write nothing.")
@click.option(
    "--update",
    is_flag=True,
    help="Bring OUT up to date with SRC: decode what is new or changed, keep the rest.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace a presize dataset once the new one is whole; a folder's files one by one.",
)
@click.option("--report/--no-report", default=True, show_default=True, help="Write report.html about the build.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def build(
    source: str, out: str, sizes: tuple[Size, ...], filter_: choices.Filter, format_: choices.Format, layout:
    choices.Layout, shard_samples: int | None, follow_links: bool, checksum: bool, labels: str | None, classes: str |
    None, repeated: choices.Repeated, split: str | None, split_seed: int, keys: str | None, label_keys: str | None,
    pairs: tuple[str, ...], pair_formats: tuple[str, ...], pair_filters: tuple[str, ...], boxes: tuple[Coordinates,
    ...], keypoints: tuple[Coordinates, ...], bad_boxes: choices.BadBoxes, jobs: int | None, engine: choices.Engine,
    scheduler: str | None, on_error: choices.OnError, timeout_s: float, max_errors: ErrorBudget | None, part: BuildPart
    | None, scratch: str | None, update: bool, overwrite: bool, dry_run: bool, report: bool, as_json: bool,
    **image: Any,
) -> None:  # fmt: skip
    """Resize the images of SRC and pack them into OUT.

    SRC is a folder of class folders, a folder of images, or any folder with --labels; or LMDBs, WebDataset's tar
    shards or Parquet files, with the images in them. SRC and OUT may be URLs, such as s3://BUCKET/PATH. Run it again to
    finish a build that was interrupted, and with --update when SRC has changed.
    """
    from presize.build.parts.part import build_part
    from presize.build.reuse import plan_update
    from presize.build.run import build_dataset, plan_build
    from presize.build.state import check_places
    from presize.build.to_url import build_to_url, scratch_out
    from presize.sources.companions import companions_of
    from presize.sources.labels import read_classes

    image_options = ImageOptions(sizes=sizes, filter=filter_, format=format_, **image)
    companions = companions_of(pairs, pair_formats, pair_filters)
    build_options = BuildOptions(
        image_options, layout, shard_samples, follow_links, checksum, companions, boxes, keypoints, bad_boxes
    )
    run = RunOptions(
        jobs, engine, on_error, max_errors or ErrorBudget(), overwrite, update, report, timeout_s, scheduler
    )
    known = None if classes is None else read_classes(Path(classes))
    samples = SourceOptions(labels, known, repeated, split, split_seed, keys, label_keys)
    to_url = "://" in out
    if dry_run and part is not None:
        raise click.UsageError("--part: a dry run is of the whole build; leave one of --part and --dry-run out.")
    if part is not None and to_url:
        raise click.UsageError(f"--part: all parts write to one folder; build there, then presize upload it to {out}.")
    if scratch is not None and not to_url:
        raise click.UsageError(f"--scratch: is for an OUT that is a URL, and {out} is a folder; leave it out.")
    if dry_run:
        if to_url and update:
            raise click.UsageError(f"--dry-run: an update is planned in a folder; presize fetch {out} to one first.")
        place = check_places(source, scratch_out(out, scratch) if to_url else out, build_options, run)
        plan = plan_build(source, build_options, samples)
        to_build, changes = plan_update(plan, place, run) if update else (plan, None)
        print_plan(plan, to_build, changes, out, run, as_json)
        return
    with BuildProgress(sys.stderr) as progress, Progress(sys.stderr, "upload", in_bytes=True) as uploading:
        try:
            if part is not None:
                built = build_part(
                    source, out, part, build_options, run, samples, on_plan=progress.begin, on_shard=progress.on_shard
                )
                return print_part(built, as_json)
            begin: Any = build_dataset
            if to_url:
                begin = partial(build_to_url, scratch=scratch, on_rest=uploading.begin, on_bytes=uploading.add)
            result = begin(
                source, out, build_options, run, samples,
                on_plan=lambda plan: progress.begin(len(plan.source.table)), on_shard=progress.on_shard,
            )  # fmt: skip
        except KeyboardInterrupt as stop:
            raise (InterruptedByTerm if isinstance(stop, Terminated) else Interrupted)() from None
    if as_json:
        print_json(
            samples=result.samples, stored=result.stored, rejected=result.rejected, skipped=result.skipped,
            seconds=round(result.seconds, 3), images_per_s=round(result.images_per_s, 1), out=str(result.out),
            unchanged=result.unchanged, losses=result.losses._asdict(), **(result.changes._asdict() if update else {}),
            reports=list(map(str, result.reports)),
        )  # fmt: skip
        return
    print_text(build_summary(result, update, KEEP in sizes))
