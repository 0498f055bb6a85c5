"""presize info, verify, export and sample: what there is to do with a dataset, and without one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from presize.cli.group import EPILOG, cli
from presize.cli.printing import print_json, print_text
from presize.cli.progress import Progress
from presize.formatting import printable, size_text


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(dataset: str, as_json: bool) -> None:
    """Show what is in the dataset OUT and how it was made."""
    from presize.store.manifest import read_manifest

    manifest = read_manifest(dataset)
    facts = {
        "samples": manifest.samples,
        "bytes": manifest.bytes,
        "classes": None if manifest.classes is None else list(manifest.classes),
        "shards": len(manifest.shards),
        "layout": manifest.layout,
        "size": manifest.size,
        "options": manifest.identity["options"],
        "left_out": manifest.left_out,
        "versions": manifest.identity["versions"],
        "digest": manifest.digest,
    }
    if as_json:
        print_json(**facts)
        return
    image = manifest.identity["options"]["image"]
    classes = f"{len(manifest.classes):,} classes" if manifest.classes is not None else "no classes"
    asked = ", ".join(f"{name} {value}" for name, value in image.items() if name not in ("sizes", "max_pixels"))
    print_text(
        f"samples   {manifest.samples:,} in {classes}\n"
        f"stored    {size_text(manifest.bytes)}, {manifest.bytes / manifest.samples / 1e3:.1f} kB an image, "
        f"in {f'{len(manifest.shards):,} shards' if manifest.shards else 'files'}\n"
        f"size      {manifest.size} px\n"
        f"made with {asked}\n"
        f"left out  {', '.join(f'{count:,} {what}' for what, count in manifest.left_out.items())}\n"
        f"versions  {', '.join(f'{name} {version}' for name, version in manifest.identity['versions'].items())}"
    )


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Threads.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(dataset: str, jobs: int | None, as_json: bool) -> None:
    """Read every byte of the dataset OUT and say what is wrong.

    The exit code is 1 if anything is.
    """
    from presize.store.manifest import read_manifest
    from presize.store.verify import verify_dataset

    with Progress(sys.stderr, "verify") as progress:
        progress.begin(read_manifest(dataset).samples)
        samples, problems = verify_dataset(dataset, jobs=jobs, on_images=progress.add)
    if as_json:
        print_json(samples=samples, problems=[problem._asdict() for problem in problems])
    else:
        for problem in problems:
            print_text(printable(f"{problem.file}: {problem.what}"))
        print_text(f"{dataset}: {samples:,} samples, {len(problems):,} problems")
    if problems:
        raise click.exceptions.Exit(1)


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.argument("folder", metavar="DIR")
@click.option(
    "--to",
    "layout",
    type=click.Choice(["folder"]),
    default="folder",
    show_default=True,
    help="What to make of it.",
)
def export(dataset: str, folder: str, layout: str) -> None:  # noqa: ARG001  # one choice so far
    """Write the images of the dataset OUT as files below DIR."""
    from presize.store.export import export_dataset
    from presize.store.manifest import read_manifest

    with Progress(sys.stderr, "export") as progress:
        progress.begin(read_manifest(dataset).samples)
        written = export_dataset(dataset, folder, on_image=lambda: progress.add(1))
    print_text(f"{folder}: {written:,} files")


@cli.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR")
@click.option("--images", type=int, default=200, show_default=True, metavar="N", help="Files to make.")
@click.option("--classes", type=int, default=4, show_default=True, metavar="N", help="Class folders.")
@click.option(
    "--long-side",
    type=int,
    default=500,
    show_default=True,
    metavar="PX",
    help="Longer side of a typical picture.",
)
@click.option("--broken", type=int, default=0, show_default=True, metavar="N", help="How many are broken files.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Other numbers, other pictures.")
def sample(folder: str, images: int, **options: int) -> None:
    """Make photo-like images in DIR, to try everything with."""
    from presize.sources.sample import SampleOptions, make_samples

    with Progress(sys.stderr, "sample") as progress:
        progress.begin(images)
        written = make_samples(Path(folder), SampleOptions(images=images, **options), lambda: progress.add(1))
    print_text(f"{folder}: {written:,} files in {options['classes']} classes")
