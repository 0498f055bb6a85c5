"""Datasets from datasets: bytes that are copied, images that are resized, several in one, resumed and published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import SERIAL, SMALL, files
from commands import Ran
from paired import WITH_MASKS, make_pairs
from pictures import smooth_image
from presize.builder.derive import DeriveOptions, derive_dataset, plan_derive
from presize.builder.repair import repair_dataset
from presize.builder.run import build_dataset
from presize.codecs.encode import encode
from presize.codecs.source_facts import unpack_facts
from presize.codecs.transcode import transcode
from presize.errors import BuildError, DatasetError, OptionError, SourceError
from presize.options import KEEP, BuildOptions, Coordinates, ImageOptions, RunOptions, Size, SourceOptions
from presize.store.dataset import Dataset
from presize.store.rejects_file import read_rejects
from presize.store.verify import VerifyResult, verify_dataset
from tampering import change_manifest, change_offset, change_records, flip_record, read_table, with_value, write_table


def save(folder: Path, *names: str, height: int = 40) -> Path:
    """Photographs of these names, each another one."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(height, 50, seed=sum(map(ord, name)))).save(path)
    return folder


def built(folder: Path, *names: str, options: BuildOptions = SMALL, samples: SourceOptions = SourceOptions()) -> Path:
    """A dataset of such photographs, in a folder that is called out."""
    build_dataset(save(folder / "raw", *names), folder / "out", options, SERIAL, samples)
    return folder / "out"


def with_table(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A dataset of such photographs with these columns."""
    (folder).mkdir(parents=True, exist_ok=True)
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return built(folder, *(row["path"] for row in rows), samples=SourceOptions(folder / "table.jsonl"))


def stored(root: Path) -> list[tuple[str, bytes]]:
    """The path and the bytes of each sample, in order."""
    data = Dataset(root)
    return [(data.path(i), data.value(i)) for i in range(len(data))]


def derived(datasets: Sequence[Path] | Path, out: Path, **options: Any) -> Dataset:
    """The dataset that is derived, which is whole."""
    derive_dataset([datasets] if isinstance(datasets, Path) else datasets, out, DeriveOptions(**options), SERIAL)
    assert verify_dataset(out) == VerifyResult(len(Dataset(out)))
    return Dataset(out)


@pytest.mark.parametrize(("size", "share"), [(Size(8, 8), 0.2), (Size(32, 32), 0.6)], ids=str)
def test_smaller_images_need_less_room(
    size: Size, share: float, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = int(Dataset(dataset).numbers("nbytes").sum())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=int(share * nbytes)))
    assert len(derived(dataset, tmp_path / "new", size=size)) == len(Dataset(dataset))


def test_a_folder_of_image_files_is_no_base(tmp_path: Path) -> None:
    out = built(tmp_path, "a.jpg", options=replace(SMALL, layout="folder"))
    with pytest.raises(DatasetError, match="is a folder of image files, without shards"):
        derive_dataset([out], tmp_path / "new")


def test_images_are_copied_byte_for_byte_with_all_that_is_known_of_them(dataset: Path, tmp_path: Path) -> None:
    new = derived(dataset, tmp_path / "new")
    assert stored(tmp_path / "new") == stored(dataset)
    old = Dataset(dataset)
    places = {"shard", "row"}
    assert all(new.column(name).equals(old.column(name)) for name in old.index.schema.names if name not in places)
    assert new.manifest.classes == old.manifest.classes


def test_a_copy_is_the_dataset_that_a_build_from_the_source_makes(tmp_path: Path) -> None:
    out = built(tmp_path, *(f"{name}/{i}.png" for name in ("a", "b") for i in range(5)))
    derived(out, tmp_path / "new")
    assert files(tmp_path / "new") == files(out)


def test_what_was_begun_from_another_dataset_is_not_resumed(tmp_path: Path) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    raw = BuildOptions(ImageOptions((Size(24, 24),), format="raw"))
    out = built(tmp_path, *(f"{i}.png" for i in range(5)), options=raw)
    shutil.copytree(out, tmp_path / "other")
    change_records(tmp_path / "other", lambda _shard, _row, value: bytes(len(value)))
    with pytest.raises(KeyboardInterrupt):
        derive_dataset([out], tmp_path / "new", run=SERIAL, on_shard=stop)
    derived(tmp_path / "other", tmp_path / "new")
    assert stored(tmp_path / "new") == stored(tmp_path / "other")


def test_what_the_build_rejected_stays_listed(dataset: Path, tmp_path: Path) -> None:
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
def test_a_smaller_size_is_what_the_stored_images_make(format: dict[str, Any], tmp_path: Path) -> None:
    image = ImageOptions((Size(32, 32),), **format)
    out = built(tmp_path, "a.png", "b.png", options=BuildOptions(image))
    new = derived(out, tmp_path / "new", size=Size(20, 20))
    assert [new.shape(i) for i in range(2)] == [(20, 25), (20, 25)]
    smaller = replace(image, sizes=(Size(20, 20),))
    for i, pixels in Dataset(out).pixels(range(2)):
        is_raw = image.format == "raw"
        source = encode(pixels, replace(image, format="png")) if is_raw else Dataset(out).value(i)
        assert new.value(i) == transcode(source, smaller).records[0].value


def test_images_of_their_own_size_are_brought_to_one(tmp_path: Path) -> None:
    out = built(tmp_path, "a.png", options=BuildOptions(ImageOptions((KEEP,))))
    new = derived(out, tmp_path / "new", size=Size(20, 20))
    assert new.shape(0) == (20, 25)
    assert new.manifest.identity["options"]["derived"] == ["sizes keep"]
    with pytest.raises(OptionError, match="images keep their size without --size"):
        DeriveOptions(KEEP)


def test_images_that_fit_already_are_copied(tmp_path: Path) -> None:
    save(tmp_path / "raw", "small.png", height=20)
    out = built(tmp_path, "large.png")
    result = derive_dataset([out], tmp_path / "new", DeriveOptions(Size(32, 32)), SERIAL)
    assert (result.copied, result.resized, result.recompressed) == (1, 1, True)
    assert Dataset(tmp_path / "new").value(1) == Dataset(out).value(1)


def test_a_plain_jpeg_that_is_resized_is_no_longer_kept_as_it_was(tmp_path: Path) -> None:
    save(tmp_path / "raw", "a.jpg")
    out = built(tmp_path)
    new = derived(out, tmp_path / "new", size=Size(32, 32))
    assert unpack_facts(Dataset(out).numbers("source_facts"), "kept").tolist() == [1]
    assert unpack_facts(new.numbers("source_facts"), "kept").tolist() == [0]
    assert unpack_facts(new.numbers("source_facts"), "kind").tolist() == [1]


def test_lossless_formats_have_no_second_generation(tmp_path: Path) -> None:
    out = built(tmp_path, "a.png", options=BuildOptions(ImageOptions((Size(32, 32),), format="png")))
    assert not derive_dataset([out], tmp_path / "new", DeriveOptions(Size(20, 20)), SERIAL).recompressed


@pytest.mark.parametrize("wanted", [Size(65, 64), Size(64, 65)])
def test_a_larger_size_is_refused(wanted: Size, dataset: Path) -> None:
    with pytest.raises(OptionError, match=rf"^size: {wanted} is larger than the 64 of .*from their source$"):
        plan_derive([dataset], DeriveOptions(wanted))


def test_one_of_several_sizes_can_be_derived_from(tmp_path: Path) -> None:
    several = BuildOptions(ImageOptions((Size(32, 32), Size(24, 24))))
    out = built(tmp_path, "a.png", options=several)
    assert derived(out / "24", tmp_path / "new").shape(0) == (24, 30)
    with pytest.raises(DatasetError, match="holds the datasets 24, 32; open one of them"):
        plan_derive([out])


def test_the_samples_that_are_listed_are_taken_in_the_order_of_the_dataset(dataset: Path, tmp_path: Path) -> None:
    paths = [path for path, _ in stored(dataset)]
    new = derived(dataset, tmp_path / "new", only=[paths[20], paths[3]])
    assert [new.path(i) for i in range(len(new))] == [paths[3], paths[20]]
    assert new.manifest.classes == Dataset(dataset).manifest.classes
    assert new.manifest.left_out["rejected"] == 0


def test_a_listed_path_that_no_dataset_has_is_refused(dataset: Path) -> None:
    with pytest.raises(SourceError, match=r"--only: 1 of 2 paths are in no dataset, the first is 'nix.jpg'"):
        plan_derive([dataset], DeriveOptions(only=[Dataset(dataset).path(0), "nix.jpg"]))


def test_datasets_follow_one_another_and_labels_go_by_name(tmp_path: Path) -> None:
    one, other = built(tmp_path / "one", "cat/1.png", "dog/1.png"), built(tmp_path / "other", "bee/2.png", "dog/2.png")
    new = derived([one, other], tmp_path / "new")
    assert new.manifest.classes == ("bee", "cat", "dog")
    assert stored(tmp_path / "new") == stored(one) + stored(other)
    assert new.numbers("label").tolist() == [1, 2, 0, 2]


def test_a_class_list_that_begins_as_another_is_continued(tmp_path: Path) -> None:
    one = built(tmp_path / "one", "dog/1.png", samples=SourceOptions(classes=["dog", "cat"]))
    other = built(tmp_path / "other", "ant/2.png", samples=SourceOptions(classes=["dog", "cat", "ant"]))
    new = derived([one, other], tmp_path / "new")
    assert new.manifest.classes == ("dog", "cat", "ant")
    assert new.numbers("label").tolist() == [0, 2]


def test_class_lists_that_disagree_are_refused_until_one_is_given(tmp_path: Path) -> None:
    one = built(tmp_path / "one", "dog/1.png", samples=SourceOptions(classes=["dog", "cat"]))
    other = built(tmp_path / "other", "cat/2.png", "dog/2.png")
    message = r"class 0 is 'dog' in .*one/out and 'cat' in .*other/out; --classes FILE\|DATASET settles it"
    with pytest.raises(SourceError, match=message):
        plan_derive([one, other])
    new = derived([one, other], tmp_path / "new", classes=["dog", "ant", "cat"])
    assert new.numbers("label").tolist() == [0, 2, 0]


def test_a_class_list_without_one_of_the_classes_is_refused(tmp_path: Path) -> None:
    out = built(tmp_path, "cat/1.png", "dog/1.png")
    with pytest.raises(SourceError, match="has the class 'dog', which is not in the list"):
        plan_derive([out], DeriveOptions(classes=["cat"]))
    assert len(plan_derive([out], DeriveOptions(classes=["cat"], only=["cat/1.png"])).plan.source.table) == 1


def test_classes_are_for_datasets_with_classes(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no classes"):
        plan_derive([built(tmp_path, "1.png")], DeriveOptions(classes=["cat"]))


def test_a_dataset_with_classes_and_one_without_are_no_dataset_together(tmp_path: Path) -> None:
    one, other = built(tmp_path / "one", "cat/1.png"), built(tmp_path / "other", "1.png")
    numbers = with_table(tmp_path / "numbers", [{"path": "2.png", "label": 3}])
    with pytest.raises(SourceError, match=r"one/out has labels and .*other/out has none"):
        plan_derive([one, other])
    with pytest.raises(SourceError, match=r"one/out has labels and .*other/out has none"):
        plan_derive([other, one])
    with pytest.raises(SourceError, match=r"one/out has classes and .*numbers/out has none"):
        plan_derive([one, numbers])


def test_a_column_that_a_dataset_lacks_is_null_there(tmp_path: Path) -> None:
    one = with_table(tmp_path / "one", [{"path": "1.png", "label": "cat", "age": 3}])
    other = with_table(tmp_path / "other", [{"path": "2.png", "label": "cat", "name": "Tom"}])
    new = derived([one, other], tmp_path / "new")
    assert new.column("age").to_pylist() == [3, None]
    assert new.column("name").to_pylist() == [None, "Tom"]


def test_columns_of_different_types_are_refused(tmp_path: Path) -> None:
    one = with_table(tmp_path / "one", [{"path": "1.png", "age": 3}])
    other = with_table(tmp_path / "other", [{"path": "2.png", "age": "three"}])
    with pytest.raises(SourceError, match=r"a column of different types: .*age"):
        plan_derive([one, other])


def test_a_path_that_two_datasets_have_is_refused_until_their_numbers_are_put_before_it(tmp_path: Path) -> None:
    one, other = built(tmp_path / "one", "cat/1.png"), built(tmp_path / "other", "cat/1.png", "cat/2.png")
    with pytest.raises(SourceError, match=r"the path 'cat/1.png' twice; --prefix puts the number"):
        plan_derive([one, other])
    new = derived([one, other], tmp_path / "new", prefix=True)
    assert [new.path(i) for i in range(3)] == ["0/cat/1.png", "1/cat/1.png", "1/cat/2.png"]
    assert [new.value(i) for i in range(3)] == [value for root in (one, other) for _, value in stored(root)]


def test_rejects_of_several_datasets_are_listed_under_their_numbers(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("one", "other")]
    for root in roots:
        (root / "raw" / "cat").mkdir(parents=True)
        (root / "raw" / "cat" / "é.jpg").write_bytes(b"<html>404</html>")
    derived([built(root, "cat/1.png") for root in roots], tmp_path / "new", prefix=True)
    before = [read_rejects(root / "out" / "rejects.jsonl")[0] for root in roots]
    after = read_rejects(tmp_path / "new" / "rejects.jsonl")
    assert list(after) == [one._replace(path=f"{number}/cat/é.jpg") for number, one in enumerate(before)]


def test_datasets_of_different_sizes_are_brought_to_one(tmp_path: Path) -> None:
    one = built(tmp_path / "one", "1.png", options=BuildOptions(ImageOptions((Size(32, 32),))))
    other = built(tmp_path / "other", "2.png", options=BuildOptions(ImageOptions((Size(24, 24),))))
    with pytest.raises(SourceError, match=r"images of size 32 and .* of size 24; --size brings them to one"):
        plan_derive([one, other])
    new = derived([one, other], tmp_path / "new", size=Size(24, 24))
    assert [new.shape(i) for i in range(2)] == [(24, 30), (24, 30)]
    assert new.value(1) == Dataset(other).value(0)


@pytest.mark.parametrize("change", [{"format": "png"}, {"color": "gray"}])
def test_datasets_of_different_formats_are_no_dataset_together(change: dict[str, Any], tmp_path: Path) -> None:
    one = built(tmp_path / "one", "1.png")
    other = built(tmp_path / "other", "2.png", options=replace(SMALL, image=replace(SMALL.image, **change)))
    (name,) = change
    with pytest.raises(SourceError, match=rf"cannot be one dataset: {name} is .* in the one, .* in the other"):
        plan_derive([one, other])


def test_an_update_continues_what_was_copied(tmp_path: Path) -> None:
    out = built(tmp_path, *(f"{i}.png" for i in range(6)))
    derived(out, tmp_path / "new")
    save(tmp_path / "raw", "6.png")
    result = build_dataset(tmp_path / "raw", tmp_path / "new", SMALL, replace(SERIAL, update=True))
    assert result.changes.built == 1


@pytest.mark.parametrize("other_quality", [False, True])
def test_an_update_does_not_continue_what_a_build_would_make_otherwise(other_quality: bool, tmp_path: Path) -> None:
    one, other = built(tmp_path / "one", "1.png"), tmp_path / "other" / "out"
    built(tmp_path / "other", "2.png", options=replace(SMALL, image=replace(SMALL.image, quality=70)))
    new = (
        derived([one, other], tmp_path / "new") if other_quality else derived(one, tmp_path / "new", size=Size(32, 32))
    )
    options = replace(SMALL, image=replace(SMALL.image, sizes=(Size.parse(new.manifest.size),)))
    what = "quality 70" if other_quality else "sizes 64"
    with pytest.raises(BuildError, match=rf"was derived from other datasets \({what}.*derive it again"):
        build_dataset(tmp_path / "one" / "raw", tmp_path / "new", options, replace(SERIAL, update=True))


def test_the_small_shards_of_updates_become_few(tmp_path: Path) -> None:
    out = built(tmp_path, "0.png")
    for i in range(1, 6):
        save(tmp_path / "raw", f"{i}.png")
        build_dataset(tmp_path / "raw", out, SMALL, replace(SERIAL, update=True))
    assert len(Dataset(out).manifest.shards) == 6
    assert len(derived(out, tmp_path / "new").manifest.shards) == 3
    assert stored(tmp_path / "new") == stored(out)


def test_any_number_of_jobs_gives_the_same_bytes(dataset: Path, tmp_path: Path) -> None:
    options = DeriveOptions(Size(32, 32))
    derive_dataset([dataset], tmp_path / "one", options, SERIAL)
    derive_dataset([dataset], tmp_path / "other", options, RunOptions(jobs=2))
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_what_was_interrupted_is_resumed_and_has_the_same_bytes(dataset: Path, tmp_path: Path) -> None:
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    options = DeriveOptions(Size(32, 32))
    with pytest.raises(KeyboardInterrupt):
        derive_dataset([dataset], tmp_path / "new", options, SERIAL, on_shard=stop)
    (first,) = (tmp_path / "new" / "shards").glob("*.lmdb")
    begun = first.stat()
    derive_dataset([dataset], tmp_path / "new", options, SERIAL)
    assert first.stat() == begun
    derive_dataset([dataset], tmp_path / "other", options, SERIAL)
    assert files(tmp_path / "new") == files(tmp_path / "other")


def test_the_same_command_again_has_nothing_to_do(dataset: Path, tmp_path: Path) -> None:
    derive_dataset([dataset], tmp_path / "new", run=SERIAL)
    before = files(tmp_path / "new")
    shards: list[object] = []
    result = derive_dataset([dataset], tmp_path / "new", run=SERIAL, on_shard=shards.append)
    assert (result.samples, shards) == (len(Dataset(dataset)), [])
    assert files(tmp_path / "new") == before


def test_another_dataset_is_replaced_only_when_that_is_asked_for(dataset: Path, tmp_path: Path) -> None:
    out = built(tmp_path, "1.png")
    with pytest.raises(
        BuildError, match=r"holds a dataset that differs .*; choose another OUT, or --overwrite replaces it"
    ):
        derive_dataset([dataset], out, run=SERIAL)
    derive_dataset([dataset], out, run=replace(SERIAL, overwrite=True))
    assert stored(out) == stored(dataset)
    assert verify_dataset(out) == VerifyResult(len(Dataset(dataset)))


@pytest.mark.parametrize("place", ["out", "out/inside", "."])
def test_a_place_in_or_around_a_dataset_is_refused(place: str, tmp_path: Path) -> None:
    out = built(tmp_path, "1.png")
    before = files(tmp_path)
    with pytest.raises(SourceError, match="lies inside"):
        derive_dataset([out], tmp_path / place, run=SERIAL)
    assert files(tmp_path) == before


def test_a_damaged_record_is_never_copied(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    flip_record(tmp_path / "out", 7)
    with pytest.raises(DatasetError, match=r"the record of .* is damaged; presize repair"):
        derive_dataset([tmp_path / "out"], tmp_path / "new", run=SERIAL)
    assert not (tmp_path / "new" / "manifest.json").exists()


def test_a_missing_shard_is_refused(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    (tmp_path / "out" / "shards" / "00001.lmdb").unlink()
    with pytest.raises(DatasetError, match="out: 1 shard is missing or damaged; presize repair makes shards again"):
        plan_derive([tmp_path / "out"])


def test_a_label_out_of_range_is_damage(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    write_table(tmp_path / "out", with_value(read_table(tmp_path / "out"), "label", 3, 99))
    with pytest.raises(DatasetError, match="a label is out of range"):
        plan_derive([tmp_path / "out"])


@pytest.mark.parametrize("option", ["boxes", "keypoints", "derived"])
@pytest.mark.parametrize("value", [5, [5]])
def test_options_that_no_build_records_are_damage(option: str, value: Any, dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    change_manifest(tmp_path / "out", lambda values: values["identity"]["options"].update({option: value}))
    with pytest.raises(DatasetError, match=f"the options in the manifest are damaged: {option}"):
        plan_derive([tmp_path / "out"], DeriveOptions(Size(32, 32)))


def test_a_side_without_pixels_is_damage(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    write_table(tmp_path / "out", with_value(read_table(tmp_path / "out"), "width", 3, 0))
    with pytest.raises(DatasetError, match="a width is less than 1"):
        plan_derive([tmp_path / "out"])


def test_records_that_cannot_be_decoded_are_rejected_and_counted(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    change_records(tmp_path / "out", lambda shard, row, value: bytes(len(value)) if (shard, row) == (0, 0) else value)
    result = derive_dataset([tmp_path / "out"], tmp_path / "new", DeriveOptions(Size(32, 32)), SERIAL)
    assert (result.samples, result.rejected, result.copied) == (55, 1, 1)
    assert verify_dataset(tmp_path / "new").problems == ()


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(BuildError, match=r"has 1 kB free and needs about .* kB; make room"):
        derive_dataset([dataset], tmp_path / "new", run=SERIAL)
    assert not list(tmp_path.glob("new/shards/*"))


def test_companions_are_copied_and_resized_with_their_images(tmp_path: Path) -> None:
    build_dataset(make_pairs(tmp_path / "raw"), tmp_path / "out", WITH_MASKS, SERIAL)
    old = Dataset(tmp_path / "out")
    same = derived(tmp_path / "out", tmp_path / "same")
    assert [same.companion("mask").value(i) for i in range(len(old))] == [
        old.companion("mask").value(i) for i in range(len(old))
    ]
    new = derived(tmp_path / "out", tmp_path / "new", size=Size(16, 16))
    masks = dict(old.companion("mask").pixels(range(len(old))))
    for i, mask in new.companion("mask").pixels(range(len(new))):
        height, width = new.shape(i)
        assert np.array_equal(
            mask, np.asarray(Image.fromarray(masks[i]).resize((width, height), Image.Resampling.NEAREST))
        )


def test_boxes_and_keypoints_are_scaled_with_their_images(tmp_path: Path) -> None:
    rows = [
        {"path": "1.png", "bbox": [[10, 5, 20, 10], [0, 0, 50, 40]], "ends": [[10, 10, 30, 20]]},
        {"path": "2.png", "bbox": [], "ends": []},
    ]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"boxes": (Coordinates("bbox", "xywh"),), "keypoints": (Coordinates("ends", "xy"),)}
    options = BuildOptions(ImageOptions((Size(20, 20),)), **places)
    out = built(tmp_path, "1.png", "2.png", options=options, samples=SourceOptions(tmp_path / "table.jsonl"))
    assert Dataset(out).column("bbox").to_pylist() == [[[5, 2.5, 15, 7.5], [0, 0, 25, 20]], []]
    same = derived(out, tmp_path / "same")
    assert all(same.column(name).equals(Dataset(out).column(name)) for name in ("bbox", "ends"))
    new = derived(out, tmp_path / "new", size=Size(10, 10))
    assert new.shape(0) == (10, 12)
    assert new.column("bbox").type == same.column("bbox").type
    found = np.array(new.column("bbox").to_pylist()[0])
    assert np.allclose(found, [[2.4, 1.25, 7.2, 3.75], [0, 0, 12, 10]])
    assert np.allclose(new.column("ends").to_pylist()[0], [[2.4, 2.5, 7.2, 5]])
    assert new.column("bbox").to_pylist()[1] == []
    assert new.manifest.identity["options"]["boxes"] == ["bbox:xywh"]


def test_columns_whose_text_is_damaged_are_refused(tmp_path: Path) -> None:
    out = with_table(tmp_path, [{"path": f"{i}.png", "name": "abc"} for i in range(3)])
    change_offset(out, "name", 1, 1 << 40)
    with pytest.raises(DatasetError, match=r"the index of .* is damaged"):
        plan_derive([out])


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(OptionError, match=r"only: expected a list of paths, at least one, got 'a.jpg'"):
        DeriveOptions(only="a.jpg")
    with pytest.raises(OptionError, match="size: "):
        DeriveOptions(Size(0, 5))
    with pytest.raises(SourceError, match="at least one dataset"):
        plan_derive([])


def test_the_command_says_what_was_copied_and_what_is_a_second_generation(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    ran = presize("derive", dataset, tmp_path / "new", "--size", 32, "--jobs", 1)
    assert ran.code == 0
    assert "1 copied, 55 resized: these are compressed a second time (a second generation of JPEG or WebP)" in ran.out
    values = json.loads(presize("derive", dataset, tmp_path / "same", "--jobs", 1, "--json").out)
    assert values.pop("seconds") > 0
    assert values == {
        "samples": 56, "copied": 56, "resized": 0, "rejected": 0, "bytes": Dataset(dataset).manifest.bytes,
        "shards": 8, "out": str(tmp_path / "same"),
    }  # fmt: skip


def test_the_samples_of_all_lists_are_taken(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    paths = [path for path, _ in stored(dataset)][:3]
    for name, listed in {"one.txt": paths[2:], "two.txt": paths[:1]}.items():
        (tmp_path / name).write_text("\n".join(listed))
    lists = ["--only", tmp_path / "one.txt", "--only", tmp_path / "two.txt"]
    assert presize("derive", dataset, tmp_path / "new", *lists, "--jobs", 1).code == 0
    assert [path for path, _ in stored(tmp_path / "new")] == [paths[0], paths[2]]


def test_the_command_takes_lists_from_files(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    paths = [path for path, _ in stored(dataset)][:3]
    (tmp_path / "only.txt").write_text("\r\n".join(paths) + "\r\n\r\n")
    assert presize("derive", dataset, tmp_path / "new", "--only", tmp_path / "only.txt", "--jobs", 1).code == 0
    assert [path for path, _ in stored(tmp_path / "new")] == paths
    (tmp_path / "table.csv").write_text("width,path\n" + "".join(f"3,{path}\n" for path in paths[1:]))
    assert presize("derive", dataset, tmp_path / "two", "--only", tmp_path / "table.csv", "--jobs", 1).code == 0
    assert [path for path, _ in stored(tmp_path / "two")] == paths[1:]
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "numbers.jsonl").write_text('{"path": 3}')
    nothing = "it lists no paths"
    for name, words in {"empty.txt": nothing, "numbers.jsonl": nothing, "absent.txt": "No such file"}.items():
        ran = presize("derive", dataset, tmp_path / "other", "--only", tmp_path / name)
        assert (ran.code, words in ran.err) == (1, True)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_writes_nothing(as_json: bool, presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    ran = presize("derive", dataset, tmp_path / "new", "--size", 32, "--dry-run", *(["--json"] if as_json else []))
    assert ran.code == 0
    assert ("55 resized" in ran.out) != as_json
    assert not as_json or json.loads(ran.out)["resized"] == 55
    assert not (tmp_path / "new").exists()


def overwritten(folder: Path, options: BuildOptions) -> None:
    build_dataset(folder / "raw", folder / "out", options, replace(SERIAL, overwrite=True))


def updated(folder: Path, options: BuildOptions) -> None:
    build_dataset(folder / "raw", folder / "out", options, replace(SERIAL, update=True))


def built_anew(folder: Path, options: BuildOptions) -> None:
    """Its shards have the names and sizes of those before."""
    shutil.rmtree(folder / "out")
    build_dataset(folder / "raw", folder / "out", options, SERIAL)


@pytest.mark.parametrize("way", [overwritten, updated, built_anew])
@pytest.mark.parametrize("moment", ["on_plan", "on_shard"])
def test_a_dataset_that_is_replaced_while_it_is_read_is_not_damaged_and_the_next_run_takes_the_new_one(
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


def test_a_dataset_that_is_removed_while_it_is_read_is_not_damaged(tmp_path: Path) -> None:
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
def test_a_dataset_that_no_source_has_cannot_be_updated_from_one(
    how: str, presize: Callable[..., Ran], tmp_path: Path
) -> None:
    one, other = built(tmp_path / "one", "cat/1.png", "dog/1.png"), built(tmp_path / "other", "cat/2.png", "dog/2.png")
    derived([one, other] if how == "several datasets" else one, tmp_path / "first", **NOT_ONE_SOURCE[how])
    new = derived(tmp_path / "first", tmp_path / "new")  # which forgets nothing of it
    before = files(tmp_path / "new")
    for run in ("--update", "--dry-run"), ("--update",):
        ran = presize("build", tmp_path / "one" / "raw", tmp_path / "new", "--size", new.manifest.size, *run)
        assert ran.code == 1
        assert f"new was derived from other datasets ({how})" in ran.err
        assert ran.err.endswith("update those and derive it again, or --overwrite replaces it\n")
    assert presize("build", tmp_path / "one" / "raw", tmp_path / "new", "--size", new.manifest.size).code == 1
    assert files(tmp_path / "new") == before
    assert f"derived   from other datasets: {how}\n" in presize("info", tmp_path / "new").out


def test_a_repair_of_what_no_source_has_says_to_derive_it_again(tmp_path: Path) -> None:
    one, other = built(tmp_path / "one", "1.png"), built(tmp_path / "other", "2.png")
    new = derived([one, other], tmp_path / "new")
    for file in new.manifest.shards:
        (tmp_path / "new" / file.file).unlink()
    problems = repair_dataset(tmp_path / "one" / "raw", tmp_path / "new").problems
    assert len(problems) == 1
    assert problems[0].what.endswith(
        "2.png: cannot be read: No such file or directory; derive the dataset again, with --overwrite"
    )
