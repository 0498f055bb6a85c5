"""presize info."""

from __future__ import annotations

from presize.cli.group import command, dataset_argument, json_option
from presize.cli.output import counts_text, facts_text, print_json, print_text
from presize.formatting import plural, size_text
from presize.options import size_words


@command("presize info OUT", "presize info OUT --json")
@dataset_argument
@json_option
def info(dataset: str, as_json: bool) -> None:
    """Show the contents of the dataset OUT and how it was built."""
    from presize.store.info import info_dataset

    found = info_dataset(dataset)
    if as_json:
        companions = {each.name: each.bytes for each in found.companions}
        print_json(
            found, "samples bytes classes splits shards layout size options left_out versions digest derived",
            companions=companions,
        )  # fmt: skip
        return
    image = found.options["image"]
    classes = plural(len(found.classes), "class", "classes") if found.classes is not None else "no classes"
    per_image = size_text(found.bytes / found.samples)
    facts = [
        ("samples", f"{found.samples:,} in {classes}"),
        ("splits", counts_text(found.splits)),
        (
            "stored",
            f"{size_text(found.bytes)}, {per_image} per image, in "
            f"{plural(found.shards, 'shard') if found.shards else 'files'}",
        ),
        *(("pair", f"{c.name}: {size_text(c.bytes)}, {c.format}, {c.filter}") for c in found.companions),
        ("size", size_words(found.size)),
        ("made with", ", ".join(f"{name} {image[name]}" for name in image if name not in ("sizes", "max_pixels"))),
        ("derived", f"from other datasets: {', '.join(found.derived)}" if found.derived else ""),
        ("left out", ", ".join(f"{count:,} {what}" for what, count in found.left_out.items())),
        ("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
    ]
    print_text(facts_text(facts, width=100))
