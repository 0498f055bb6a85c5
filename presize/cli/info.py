"""presize info."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import click

from presize.cli.group import PATH, cli, examples
from presize.cli.output import print_json, print_text
from presize.formatting import plural, printable, size_text
from presize.options import size_words


@cli.command(
    epilog=examples(
        "presize info OUT",
        "presize info OUT --json",
    )
)
@click.argument("dataset", metavar="OUT", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(dataset: str, as_json: bool) -> None:
    """Show what the dataset OUT holds and how it was made."""
    from presize.pages.samples import ViewedDataset
    from presize.pages.selection import split_counts
    from presize.store.index import read_index
    from presize.store.manifest import read_manifest

    manifest = read_manifest(dataset)
    splits = dict(split_counts(ViewedDataset(Path(dataset), manifest, read_index(dataset, manifest, check=False))))
    facts = {
        "samples": manifest.samples,
        "bytes": manifest.bytes,
        "classes": None if manifest.classes is None else list(manifest.classes),
        "splits": splits,
        "shards": len(manifest.shards),
        "layout": manifest.layout,
        "size": manifest.size,
        "options": manifest.identity["options"],
        "companions": {companion.name: companion.bytes for companion in manifest.companions},
        "left_out": manifest.left_out,
        "versions": manifest.versions,
        "digest": manifest.digest,
    }
    if as_json:
        print_json(**facts)
        return
    image = manifest.identity["options"]["image"]
    classes = plural(len(manifest.classes), "class", "classes") if manifest.classes is not None else "no classes"
    asked = ", ".join(f"{name} {value}" for name, value in image.items() if name not in ("sizes", "max_pixels"))
    shards = plural(len(manifest.shards), "shard") if manifest.shards else "files"
    lines = [
        ("samples", f"{manifest.samples:,} in {classes}"),
        *([("splits", ", ".join(f"{name} {count:,}" for name, count in splits.items()))] if splits else []),
        (
            "stored",
            f"{size_text(manifest.bytes)}, {size_text(manifest.bytes / manifest.samples)} per image, in {shards}",
        ),
        *(("pair", f"{c.name}: {size_text(c.bytes)}, {c.format}, {c.filter}") for c in manifest.companions),
        ("size", size_words(manifest.size)),
        ("made with", asked),
        *([("derived", f"from other datasets: {', '.join(manifest.derived)}")] if manifest.derived else []),
        ("left out", ", ".join(f"{count:,} {what}" for what, count in manifest.left_out.items())),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
    ]
    print_text("\n".join(_line(name, text) for name, text in lines))


def _line(name: str, text: str) -> str:
    # A manifest may come from strangers.
    return fill(f"{name:<9} {printable(text)}", 100, subsequent_indent=" " * 10, break_on_hyphens=False).rstrip()
