"""Datasets derived from datasets: copied bytes, resized images, several sources, resuming and publishing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from builds import OVERWRITE, SERIAL, SMALL, UPDATE, Stopped, files, stop
from commands import Ran
from pictures import smooth_image
from presize.builder.derive import DeriveOptions, derive_dataset, plan_derive
from presize.builder.repair import repair_dataset
from presize.builder.run import build_dataset
from presize.codecs.encode import encode
from presize.codecs.source_facts import unpack_facts
from presize.codecs.transcode import transcode
from presize.errors import BuildError, DatasetError, OptionError, SourceError
from presize.options import KEEP, BuildOptions, ImageOptions, RunOptions, Size, SourceOptions
from presize.store.dataset import Dataset
from presize.store.rejects_file import read_rejects
from presize.store.verify import VerifyResult, verify_dataset
from tampering import change_manifest, change_offset, change_records, flip_record, read_table, with_value, write_table


def save(folder: Path, *names: str, height: int = 40) -> Path:
    """Save different photographs with these names."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(height, 50, seed=sum(map(ord, name)))).save(path)
    return folder


def built(folder: Path, *names: str, options: BuildOptions = SMALL, samples: SourceOptions = SourceOptions()) -> Path:
    """Build a dataset of such photographs in ``out``."""
    build_dataset(save(folder / "raw", *names), folder / "out", options, SERIAL, samples)
    return folder / "out"


def with_table(folder: Path, *rows: dict[str, Any]) -> Path:
    """Build a dataset of such photographs with these columns."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return built(folder, *(row["path"] for row in rows), samples=SourceOptions(folder / "table.jsonl"))


def with_image(*sizes: Size, **image: Any) -> BuildOptions:
    return BuildOptions(ImageOptions(sizes or (Size(64, 64),), **image))


MADE: dict[str, Callable[[Path], Path]] = {
    "cat dog": lambda place: built(place, "cat/1.png", "dog/1.png"),
    "bee dog": lambda place: built(place, "bee/2.png", "dog/2.png"),
    "cat dog, too": lambda place: built(place, "cat/2.png", "dog/2.png"),
    "cat twice": lambda place: built(place, "cat/1.png", "cat/2.png"),
    "flat": lambda place: built(place, "1.png"),
    "other": lambda place: built(place, "2.png", options=with_image(quality=70)),
    "dog, cat": lambda place: built(place, "dog/1.png", samples=SourceOptions(classes=["dog", "cat"])),
    "dog, cat, ant": lambda place: built(place, "ant/2.png", samples=SourceOptions(classes=["dog", "cat", "ant"])),
    "numbers": lambda place: with_table(place, {"path": "2.png", "label": 3}),
    "age": lambda place: with_table(place, {"path": "1.png", "label": "cat", "age": 3}),
    "name": lambda place: with_table(place, {"path": "2.png", "label": "cat", "name": "Tom"}),
    "age as text": lambda place: with_table(place, {"path": "2.png", "label": "cat", "age": "three"}),
    "size 32": lambda place: built(place, "1.png", options=with_image(Size(32, 32))),
    "size 24": lambda place: built(place, "2.png", options=with_image(Size(24, 24))),
    "two sizes": lambda place: built(place, "a.png", options=with_image(Size(32, 32), Size(24, 24))),
    "PNG": lambda place: built(place, "2.png", options=with_image(format="png")),
    "gray": lambda place: built(place, "2.png", options=with_image(color="gray")),
    "folder": lambda place: built(place, "a.jpg", options=replace(SMALL, layout="folder")),
}
"""Small read-only datasets."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    place, found = tmp_path_factory.mktemp("made"), dict[str, Path]()

    def get(name: str) -> Path:
        if name not in found:
            found[name] = MADE[name](place / name)
        return found[name]

    return get


Made = Callable[[str], Path]


def stored(root: Path) -> list[tuple[str, bytes]]:
    """Return the path and the bytes of each sample, in order."""
    data = Dataset(root)
    return [(data.path(i), data.value(i)) for i in range(len(data))]


def derived(datasets: Sequence[Path] | Path, out: Path, **options: Any) -> Dataset:
    """Derive a dataset and verify it."""
    derive_dataset([datasets] if isinstance(datasets, Path) else datasets, out, DeriveOptions(**options), SERIAL)
    assert verify_dataset(out) == VerifyResult(len(Dataset(out)))
    return Dataset(out)


# Copying and resizing


def test_a_copy_equals_a_build_from_the_source(tmp_path: Path) -> None:
    out = built(tmp_path, *(f"{name}/{i}.png" for name in ("a", "b") for i in range(5)))
    derived(out, tmp_path / "new")
    assert files(tmp_path / "new") == files(out)


def test_rejects_of_the_build_stay_listed(dataset: Path, tmp_path: Path) -> None:
    new = derived(dataset, tmp_path / "new")
    assert new.manifest.left_out == Dataset(dataset).manifest.left_out
    assert (tmp_path / "new" / "rejects.jsonl").read_bytes() == (dataset / "rejects.jsonl").read_bytes()


FORMATS: list[dict[str, Any]] = [
    {"format": "jpeg"},
    {"format": "jpeg", "color": "gray"},
    {"format": "png", "color": "keep"},
    {"format": "png", "color": "rgba"},
    {"format": "png", "depth": 16},
    {"format": "webp"},
    {"format": "raw"},
    {"format": "raw", "color": "gray"},
    {"format": "raw", "color": "rgba"},
    {"format": "raw", "depth": 16},
]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: "-".join(map(str, format.values())))
def test_a_smaller_size_is_made_from_the_stored_images(format: dict[str, Any], tmp_path: Path) -> None:
    image = ImageOptions((Size(32, 32),), **format)
    out = built(tmp_path, "a.png", "b.png", options=BuildOptions(image))
    new = derived(out, tmp_path / "new", size=Size(20, 20))
    assert [new.shape(i) for i in range(2)] == [(20, 25), (20, 25)]
    smaller = replace(image, sizes=(Size(20, 20),))
    for i, pixels in Dataset(out).pixels(range(2)):
        is_raw = image.format == "raw"
        source = encode(pixels, replace(image, format="png")) if is_raw else Dataset(out).value(i)
        assert new.value(i) == transcode(source, smaller).records[0].value


@pytest.mark.parametrize("depth", [8, 16])
def test_transparent_pixels_of_raw_images_do_not_bleed_into_a_smaller_size(depth: Any, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    half = Image.new("RGBA", (64, 64))
    half.paste((255, 0, 0, 255), (0, 0, 31, 64))
    half.save(tmp_path / "raw" / "a.png")
    build_dataset(tmp_path / "raw", tmp_path / "out", with_image(format="raw", color="rgba", depth=depth), SERIAL)
    ((_, pixels),) = derived(tmp_path / "out", tmp_path / "new", size=Size(20, 20)).pixels([0])
    assert set(pixels[pixels[:, :, 3] > 0][:, 0].tolist()) == {255 if depth == 8 else 65535}


def test_fitting_images_are_copied_and_others_are_a_second_generation(tmp_path: Path) -> None:
    save(tmp_path / "raw", "small.png", height=20)
    out = built(tmp_path, "large.jpg")
    result = derive_dataset([out], tmp_path / "new", DeriveOptions(Size(32, 32)), SERIAL)
    assert (result.copied, result.resized, result.recompressed) == (1, 1, True)
    old, new = Dataset(out), Dataset(tmp_path / "new")
    assert new.value(1) == old.value(1)
    assert unpack_facts(old.numbers("source_facts"), "kept").tolist() == [1, 0]
    assert unpack_facts(new.numbers("source_facts"), "kept").tolist() == [0, 0], "the bytes are not the source's"
    assert unpack_facts(new.numbers("source_facts"), "kind")[0] == 1


# Selected samples, and several datasets


def test_listed_samples_are_taken_in_dataset_order(dataset: Path, tmp_path: Path) -> None:
    paths = [path for path, _ in stored(dataset)]
    new = derived(dataset, tmp_path / "new", only=[paths[20], paths[3]])
    assert [new.path(i) for i in range(len(new))] == [paths[3], paths[20]]
    assert new.manifest.classes == Dataset(dataset).manifest.classes
    assert new.manifest.left_out["rejected"] == 0


@pytest.mark.parametrize("spell", ["./{}", "/{}", "{} ", "C:/{}"])
def test_samples_can_be_listed_in_any_spelling(spell: str, dataset: Path, tmp_path: Path) -> None:
    paths = [path for path, _ in stored(dataset)]
    listed = [spell.format(paths[20]), spell.format(paths[3]).replace("/", "\\"), paths[5].rpartition(".")[0]]
    new = derived(dataset, tmp_path / "new", only=listed)
    assert [new.path(i) for i in range(len(new))] == [paths[3], paths[5], paths[20]]


JOINED: dict[str, tuple[tuple[str, str], dict[str, Any], tuple[str, ...], list[int]]] = {
    "by name": (("cat dog", "bee dog"), {}, ("bee", "cat", "dog"), [1, 2, 0, 2]),
    "one list begins as the other": (("dog, cat", "dog, cat, ant"), {}, ("dog", "cat", "ant"), [0, 2]),
    "by a list that is given": (
        ("dog, cat", "cat twice"), {"classes": ["dog", "ant", "cat"]}, ("dog", "ant", "cat"), [0, 2, 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", JOINED)
def test_datasets_follow_one_another_and_have_one_class_list(how: str, made: Made, tmp_path: Path) -> None:
    names, options, classes, labels = JOINED[how]
    new = derived([made(name) for name in names], tmp_path / "new", **options)
    assert stored(tmp_path / "new") == [sample for name in names for sample in stored(made(name))]
    assert (new.manifest.classes, new.numbers("label").tolist()) == (classes, labels)


def test_a_column_that_a_dataset_lacks_is_null_there(made: Made, tmp_path: Path) -> None:
    new = derived([made("age"), made("name")], tmp_path / "new")
    assert new.column("age").to_pylist() == [3, None]
    assert new.column("name").to_pylist() == [None, "Tom"]


def test_paths_and_rejects_of_several_datasets_are_listed_under_their_numbers(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("one", "other")]
    for root in roots:
        (save(root / "raw", "cat/1.png") / "cat" / "é.jpg").write_bytes(b"<html>404</html>")
    new = derived([built(root, "cat/2.png") for root in roots], tmp_path / "new", prefix=True)
    assert [new.path(i) for i in range(4)] == ["0/cat/1.png", "0/cat/2.png", "1/cat/1.png", "1/cat/2.png"]
    assert [new.value(i) for i in range(4)] == [value for root in roots for _, value in stored(root / "out")]
    before = [read_rejects(root / "out" / "rejects.jsonl")[0] for root in roots]
    after = read_rejects(tmp_path / "new" / "rejects.jsonl")
    assert list(after) == [one._replace(path=f"{number}/cat/é.jpg") for number, one in enumerate(before)]


LABELS = r"{}/out has labels and .*{}/out has none"
REFUSED: list[tuple[Sequence[str], dict[str, Any], type[Exception], str]] = [
    ([], {}, SourceError, "at least one dataset"),
    (["flat"], {"size": KEEP}, OptionError, "without --size images keep their size"),
    (["flat"], {"size": Size(0, 5)}, OptionError, "size: "),
    (["flat"], {"size": Size(65, 64)}, OptionError, r"^size: 64x65 is larger than the 64 of .*from its source$"),
    (["flat"], {"size": Size(64, 65)}, OptionError, r"^size: 65x64 is larger than the 64 of .*from its source$"),
    (["flat"], {"only": "a.jpg"}, OptionError, "only: expected a list of paths, at least one, got 'a.jpg'"),
    (["flat"], {"only": ["1.png", "nix"]}, SourceError, "--only: 1 of 2 paths are in no dataset; the first is 'nix'"),
    (["flat"], {"only": ["1.PNG"]}, SourceError, "the first is '1.PNG'; there is '1.png', and case matters"),
    (["flat"], {"classes": ["cat"]}, SourceError, "has no classes"),
    (["folder"], {}, DatasetError, "is a folder of image files, without shards"),
    (["two sizes"], {}, DatasetError, "holds the datasets 24, 32; open one of them"),
    (["cat dog"], {"classes": ["cat"]}, SourceError, "has the class 'dog', which is not in the list"),
    (
        ["dog, cat", "bee dog"],
        {},
        SourceError,
        r"class 0 is 'dog' in .*cat/out and 'bee' in .*dog/out; choose a list with --classes FILE",
    ),
    (["cat dog", "flat"], {}, SourceError, LABELS.format("cat dog", "flat")),
    (["flat", "cat dog"], {}, SourceError, LABELS.format("cat dog", "flat")),
    (["cat dog", "numbers"], {}, SourceError, r"cat dog/out has classes and .*numbers/out has none"),
    (["age", "age as text"], {}, SourceError, "a column of different types: .*age"),
    (["cat dog", "cat twice"], {}, SourceError, "the path 'cat/1.png' twice; --prefix puts the number"),
    (["size 32", "size 24"], {}, SourceError, "images of size 32 and .* of size 24; give --size to resize them"),
    (["flat", "PNG"], {}, SourceError, "cannot be one dataset: format is .* in the first, .* in the second"),
    (["flat", "gray"], {}, SourceError, "cannot be one dataset: color is .* in the first, .* in the second"),
]


@pytest.mark.parametrize(("names", "options", "error", "said"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_sources_are_refused(
    names: Sequence[str], options: dict[str, Any], error: type[Exception], said: str, made: Made
) -> None:
    with pytest.raises(error, match=said):
        plan_derive(list(map(made, names)), DeriveOptions(**options))


# Updated, interrupted, replaced


def test_an_update_continues_from_copied_records(tmp_path: Path) -> None:
    out = built(tmp_path, *(f"{i}.png" for i in range(6)))
    derived(out, tmp_path / "new")
    save(tmp_path / "raw", "6.png")
    assert build_dataset(tmp_path / "raw", tmp_path / "new", SMALL, UPDATE).changes.built == 1


def test_an_update_does_not_reuse_records_that_a_build_would_make_differently(made: Made, tmp_path: Path) -> None:
    derived([made("flat"), made("other")], tmp_path / "new")
    with pytest.raises(BuildError, match=r"was derived from other datasets \(quality 70.*derive it again"):
        build_dataset(made("flat").with_name("raw"), tmp_path / "new", SMALL, UPDATE)


def test_small_shards_of_updates_are_merged(tmp_path: Path) -> None:
    out = built(tmp_path, "0.png")
    for i in range(1, 6):
        save(tmp_path / "raw", f"{i}.png")
        build_dataset(tmp_path / "raw", out, SMALL, UPDATE)
    assert len(Dataset(out).manifest.shards) == 6
    assert len(derived(out, tmp_path / "new").manifest.shards) == 3
    assert stored(tmp_path / "new") == stored(out)


@pytest.mark.slow
def test_an_interrupted_derivation_resumes_with_any_number_of_jobs_to_the_same_bytes(
    dataset: Path, tmp_path: Path
) -> None:
    options = DeriveOptions(Size(32, 32))
    with pytest.raises(Stopped):
        derive_dataset([dataset], tmp_path / "new", options, SERIAL, on_shard=stop)
    (first,) = (tmp_path / "new" / "shards").glob("*.lmdb")
    begun = first.stat()
    derive_dataset([dataset], tmp_path / "new", options, RunOptions(jobs=2))
    assert first.stat() == begun
    derive_dataset([dataset], tmp_path / "other", options, SERIAL)
    assert files(tmp_path / "new") == files(tmp_path / "other")


def test_a_derivation_from_another_dataset_is_not_resumed(tmp_path: Path) -> None:
    out = built(tmp_path, *(f"{i}.png" for i in range(5)), options=with_image(Size(24, 24), format="raw"))
    shutil.copytree(out, tmp_path / "other")
    change_records(tmp_path / "other", lambda _shard, _row, value: bytes(len(value)))
    with pytest.raises(Stopped):
        derive_dataset([out], tmp_path / "new", run=SERIAL, on_shard=stop)
    derived(tmp_path / "other", tmp_path / "new")
    assert stored(tmp_path / "new") == stored(tmp_path / "other")


def test_another_dataset_is_replaced_only_on_request(dataset: Path, tmp_path: Path) -> None:
    out = built(tmp_path, "1.png")
    said = r"holds a dataset that differs .*; choose another OUT, or use --overwrite to replace it"
    with pytest.raises(BuildError, match=said):
        derive_dataset([dataset], out, run=SERIAL)
    derive_dataset([dataset], out, run=OVERWRITE)
    assert stored(out) == stored(dataset)
    assert verify_dataset(out) == VerifyResult(len(Dataset(dataset)))


@pytest.mark.parametrize("place", ["out/inside", "."])
def test_an_out_inside_or_around_a_dataset_is_refused(place: str, made: Made) -> None:
    out = made("flat")
    before = files(out.parent)
    with pytest.raises(SourceError, match="lies inside"):
        derive_dataset([out], out.parent / place, run=SERIAL)
    assert files(out.parent) == before


@pytest.mark.parametrize(
    ("size", "share", "fits"),
    [(Size(8, 8), 0.2, True), (Size(32, 32), 0.1, False), (None, 0.9, False)],
)
def test_smaller_images_need_less_space(
    size: Size | None, share: float, fits: bool, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=int(share * Dataset(dataset).numbers("nbytes").sum()))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if fits:
        assert len(derived(dataset, tmp_path / "new", size=size)) == len(Dataset(dataset))
    else:
        with pytest.raises(BuildError, match=r"has .*B free and needs about .*B; make room"):
            derive_dataset([dataset], tmp_path / "new", DeriveOptions(size), SERIAL)
        assert not list(tmp_path.glob("new/shards/*"))


# Damage


def with_option(name: str, value: Any) -> Callable[[Path], None]:
    return lambda root: change_manifest(root, lambda values: values["identity"]["options"].update({name: value}))


def with_number(column: str, value: int) -> Callable[[Path], None]:
    return lambda root: write_table(root, with_value(read_table(root), column, 3, value))


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda root: flip_record(root, 7),
        r"the record of .* is damaged; presize repair SRC OUT .*; in a copy from a URL, delete",
    ),
    (
        lambda root: (root / "shards" / "00001.lmdb").unlink(),
        "out: 1 shard is missing or damaged; presize repair SRC OUT rebuilds damaged shards; in a copy from a URL",
    ),
    (with_number("label", 99), "a label is out of range"),
    (with_number("width", 0), "a width is less than 1"),
    *(
        (with_option(option, value), f"the options in the manifest are damaged: {option}")
        for option in ("boxes", "keypoints", "derived")
        for value in (5, [5])
    ),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE, ids=range(len(DAMAGE)))
def test_damaged_records_are_never_copied(
    damage: Callable[[Path], object], said: str, dataset: Path, tmp_path: Path
) -> None:
    damage(Path(shutil.copytree(dataset, tmp_path / "out")))
    with pytest.raises(DatasetError, match=said):
        derive_dataset([tmp_path / "out"], tmp_path / "new", run=SERIAL)
    assert not (tmp_path / "new" / "manifest.json").exists()


def test_columns_with_damaged_text_are_refused(tmp_path: Path) -> None:
    out = with_table(tmp_path, *({"path": f"{i}.png", "name": "abc"} for i in range(3)))
    change_offset(out, "name", 1, 1 << 40)
    with pytest.raises(DatasetError, match=r"the index of .* is damaged"):
        plan_derive([out])


def test_undecodable_records_are_rejected_and_counted(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    change_records(tmp_path / "out", lambda shard, row, value: bytes(len(value)) if (shard, row) == (0, 0) else value)
    result = derive_dataset([tmp_path / "out"], tmp_path / "new", DeriveOptions(Size(32, 32)), SERIAL)
    assert (result.samples, result.rejected, result.copied) == (55, 1, 1)
    assert verify_dataset(tmp_path / "new").problems == ()


# The command


@pytest.mark.slow
def test_the_command_reports_copies_and_second_generations(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    command = ("derive", dataset, tmp_path / "new", "--size", 32, "--jobs", 1)
    assert "55 resized" in presize(*command, "--dry-run").out
    assert json.loads(presize(*command, "--dry-run", "--json").out)["resized"] == 55
    assert not (tmp_path / "new").exists()
    ran = presize(*command)
    assert ran.code == 0
    assert "1 copied, 55 resized; the resized images were compressed a second time, which costs a little" in ran.out
    values = json.loads(presize("derive", dataset, tmp_path / "same", "--jobs", 1, "--json").out)
    assert values.pop("seconds") > 0
    assert values == {
        "samples": 56, "copied": 56, "resized": 0, "rejected": 0, "bytes": Dataset(dataset).manifest.bytes,
        "shards": 8, "out": str(tmp_path / "same"),
    }  # fmt: skip


@pytest.mark.slow
def test_the_command_takes_the_samples_of_all_lists(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    paths = [path for path, _ in stored(dataset)][:4]
    lists = {
        "one.txt": "\r\n".join(paths[2:]) + "\r\n\r\n", "table.csv": f"width,path\n3,{paths[0]}\n",
        "empty.txt": "\n", "numbers.jsonl": '{"path": 3}',
    }  # fmt: skip
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
    only = ["--only", tmp_path / "one.txt", "--only", tmp_path / "table.csv"]
    assert presize("derive", dataset, tmp_path / "new", *only, "--jobs", 1).code == 0
    assert [path for path, _ in stored(tmp_path / "new")] == [paths[0], *paths[2:]]
    nothing = "it lists no paths"
    for name, words in {"empty.txt": nothing, "numbers.jsonl": nothing, "absent.txt": "No such file"}.items():
        ran = presize("derive", dataset, tmp_path / "other", "--only", tmp_path / name)
        assert (ran.code, words in ran.err) == (1, True)


# Changing datasets, and samples without a source


def overwritten(folder: Path, options: BuildOptions) -> None:
    build_dataset(folder / "raw", folder / "out", options, OVERWRITE)


def updated(folder: Path, options: BuildOptions) -> None:
    build_dataset(folder / "raw", folder / "out", options, UPDATE)


def built_anew(folder: Path, options: BuildOptions) -> None:
    """Rebuild it with shards of the same names and sizes."""
    shutil.rmtree(folder / "out")
    build_dataset(folder / "raw", folder / "out", options, SERIAL)


@pytest.mark.parametrize("way", [overwritten, updated, built_anew])
@pytest.mark.parametrize("moment", ["on_plan", "on_shard"])
def test_a_dataset_replaced_during_reading_is_not_called_damaged_and_the_next_run_reads_the_new_one(
    moment: str, way: Callable[[Path, BuildOptions], None], tmp_path: Path
) -> None:
    raw = BuildOptions(ImageOptions((Size(24, 24),), format="raw"), shard_samples=2)
    out = built(tmp_path, *(f"{i}.png" for i in range(8)), options=raw)
    other = built(tmp_path / "other", "x.png", options=raw)
    replacing = [way]

    def replace_it(_: object) -> None:
        if replacing:
            for i in range(8):
                Image.fromarray(smooth_image(40, 50, seed=i)).save(tmp_path / "raw" / f"{i}.png")
            replacing.pop()(tmp_path, raw)

    callback: dict[str, Any] = {moment: replace_it}
    with pytest.raises(DatasetError, match=rf"^{out} was updated, replaced or removed since .* run the command again$"):
        derive_dataset([other, out], tmp_path / "new", run=SERIAL, **callback)
    assert not (tmp_path / "new" / "manifest.json").exists()
    derived([other, out], tmp_path / "new")
    assert stored(tmp_path / "new") == stored(other) + stored(out)


def test_a_dataset_removed_during_reading_is_not_called_damaged(tmp_path: Path) -> None:
    out = built(tmp_path, "1.png")
    with pytest.raises(DatasetError, match=r"out was updated, replaced or removed since"):
        derive_dataset([out], tmp_path / "new", run=SERIAL, on_plan=lambda _: shutil.rmtree(out))


NOT_ONE_SOURCE: dict[str, dict[str, Any]] = {
    "several datasets": {},
    "some of the samples": {"only": ["cat/1.png"]},
    "other classes": {"classes": ["dog", "cat"]},
    "prefixed paths": {"prefix": True},
    "sizes 64": {"size": Size(32, 32)},
}


@pytest.mark.parametrize("how", NOT_ONE_SOURCE)
def test_a_dataset_without_a_single_source_cannot_be_updated_from_one(
    how: str, presize: Callable[..., Ran], made: Made, tmp_path: Path
) -> None:
    one, raw = made("cat dog"), made("cat dog").with_name("raw")
    derived(
        [one, made("cat dog, too")] if how == "several datasets" else one, tmp_path / "first", **NOT_ONE_SOURCE[how]
    )
    new = derived(tmp_path / "first", tmp_path / "new")  # deriving again keeps this fact
    before = files(tmp_path / "new")
    for run in ("--update", "--dry-run"), ("--update",):
        ran = presize("build", raw, tmp_path / "new", "--size", new.manifest.size, *run)
        assert ran.code == 1
        assert f"new was derived from other datasets ({how})" in ran.err
        assert ran.err.endswith("update those and derive it again, or use --overwrite to replace it\n")
    assert presize("build", raw, tmp_path / "new", "--size", new.manifest.size).code == 1
    assert files(tmp_path / "new") == before
    assert f"derived   from other datasets: {how}\n" in presize("info", tmp_path / "new").out


def test_a_repair_without_a_source_says_to_derive_again(made: Made, tmp_path: Path) -> None:
    new = derived([made("cat dog"), made("bee dog")], tmp_path / "new")
    for file in new.manifest.shards:
        (tmp_path / "new" / file.file).unlink()
    problems = repair_dataset(made("cat dog").with_name("raw"), tmp_path / "new").problems
    assert [problem.what.partition(": cannot be read: ")[2] for problem in problems] == 2 * [
        "No such file or directory; derive the dataset again, with --overwrite"
    ]


def test_datasets_of_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^datasets: expected a list of datasets, got 5$"):
        derive_dataset(5, tmp_path / "derived")  # type: ignore[arg-type]


def test_one_dataset_has_to_be_in_a_list(dataset: Path, tmp_path: Path) -> None:
    for one in (dataset, str(dataset)):
        with pytest.raises(OptionError, match=rf"^datasets: expected a list of datasets, got '{dataset}'$"):
            derive_dataset(one, tmp_path / "derived")  # type: ignore[arg-type]
