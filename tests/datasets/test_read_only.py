"""Attributes of datasets, loaders and samplers, and ImageFolder's lists: a change takes effect, or is refused."""

from __future__ import annotations

import copy
import inspect
import io
import json
import operator
import pickle
import random
import shutil
import tracemalloc
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from presize.datasets import CenterCrop, FolderDataset, LMDBDataset, Loader, RandomCrop, Sequential, make_loader
from presize.errors import OptionError


@pytest.fixture
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset, crop=CenterCrop(24))


@pytest.fixture(params=["LMDBDataset", "subset", "FolderDataset"])
def either(request: pytest.FixtureRequest, dataset: Path, raw: Path) -> Any:
    """Return datasets that replace ImageFolder."""
    if request.param == "FolderDataset":
        return FolderDataset(raw, decode="bytes")
    data = LMDBDataset(dataset, decode="bytes")
    return data if request.param == "LMDBDataset" else data.subset([5, 3, 40, 5])


# --- assignment ---

DATASET: dict[str, Any] = {
    "root": "elsewhere", "data": None, "decode": "tensor", "target": "width", "vocabulary": {}, "multi_hot": "label",
    "companions": ("mask",), "flip_pairs": [(0, 1)], "tv_tensors": True, "crop": RandomCrop(9), "flip": 0.5,
    "fuse": True, "fused": 1, "normalize": ((0.0,), (1.0,)), "readahead": True, "preload": "memory", "check": False,
    "max_pixels": 1, "cache_dir": "elsewhere", "cache_bytes": 1, "classes": ["a"], "class_to_idx": {}, "targets": [1],
    "samples": [], "imgs": [], "splits": ["train"], "transforms": abs, "loader": len, "is_valid_file": len,
    "find_classes": len, "make_dataset": len,
}  # fmt: skip
LOADER: dict[str, Any] = {
    "dataset": None, "batch_size": 2, "flip": 0.1, "transform": len, "shuffle": True, "seed": 5,
    "mode": "threads", "last": "keep", "device": "cuda",
    "normalize": ((0.0,), (1.0,)), "dtype": torch.float16, "on_error": "skip", "rank": 1,
    "ranks": 2, "num_workers": 3, "drop_last": True, "sampler": [0], "batch_sampler": [[0]],
    "collate_fn": len, "generator": torch.Generator(), "pin_memory": True, "persistent_workers": True,
    "prefetch_factor": 5, "timeout": 1, "worker_init_fn": len, "multiprocessing_context": "spawn",
}  # fmt: skip
SAMPLER: dict[str, Any] = {
    "order": Sequential(3), "rank": 1, "ranks": 2, "batch_size": 9, "last": "keep", "epoch": 3, "schedule": None,
    "start": 5, "begun": True, "shuffle": True, "seed": 3, "num_replicas": 2, "drop_last": True,
}  # fmt: skip


def assigned(owner: Any, values: dict[str, Any]) -> list[str]:
    """Return the attributes that could be assigned."""
    taken = []
    for name, value in values.items():
        try:
            setattr(owner, name, value)
        except OptionError as error:
            assert str(error).startswith(f"{name}: cannot be changed on an existing ") and "; " in str(error)
        else:
            taken.append(name)
    return taken


def test_options_and_properties_of_created_objects_are_refused_with_an_alternative(
    data: LMDBDataset, raw: Path
) -> None:
    loader = Loader(data, 8, num_workers=0)
    assert assigned(loader, LOADER) == []
    assert assigned(loader.sampler, SAMPLER) == []
    before = [data[i] for i in range(3)]
    for owner in (data, data.subset([0, 1, 2]), copy.copy(data), pickle.loads(pickle.dumps(data))):
        assert assigned(owner, DATASET) == []
        assert [owner[i] for i in range(3)] == before
    folder = FolderDataset(raw)
    names = ("root", "decode", "classes", "class_to_idx", "targets", "samples", "imgs", "loader", "transforms")
    assert assigned(folder, {name: DATASET[name] for name in names}) == []
    images, _ = next(iter(loader))
    assert len(images) == 8


def test_assigning_the_present_value_is_accepted(dataset: Path) -> None:
    data = LMDBDataset(str(dataset))
    data.root, data.decode, data.target = Path(data.root), "pil", data.target  # type: ignore[misc,assignment]
    loader = Loader(data, 8, crop=CenterCrop(24), num_workers=0)
    loader.batch_size, loader.dataset = 8, data
    assert isinstance(data.root, str)


def test_own_attributes_can_be_set_and_changed(dataset: Path) -> None:
    class Own(LMDBDataset):
        def __init__(self, root: Path, note: str) -> None:
            self.root, self.transform, self.note = root, len, note  # type: ignore[assignment,misc]
            self.decode = self.classes = "before"  # type: ignore[misc,assignment]
            super().__init__(root, target=None, crop=CenterCrop(24))
            self.preload, self.threshold = "as you like", 3

    class OwnLoader(Loader):
        def __init__(self, dataset: LMDBDataset, seed: int) -> None:
            self.hooks: list[Any] = []
            super().__init__(dataset, 8, shuffle=True, seed=seed, num_workers=0)
            self.seed = seed

    data = Own(dataset, "mine")
    data.note, data.threshold = "yours", 4
    assert (data.note, data.threshold, data.transform, data.root) == ("yours", 4, None, str(dataset))
    loader = OwnLoader(data, 5)
    loader.epoch_hook = loader.hooks = print  # type: ignore[attr-defined,assignment]
    loader.skipped = 0
    assert len(next(iter(loader))) == 8 and data.decode == "pil" and data.classes == LMDBDataset(dataset).classes
    with pytest.raises(OptionError, match="batch_size: cannot be changed on an existing Loader; make another Loader"):
        loader.batch_size = 16


@pytest.mark.parametrize("name", ["crop", "flip", "normalize", "splits"])
def test_an_attribute_of_a_subclass_that_init_would_replace_is_refused(name: str, dataset: Path) -> None:
    class Own(LMDBDataset):
        def __init__(self, root: Path) -> None:
            setattr(self, name, 0.5)
            super().__init__(root)

    with pytest.raises(OptionError, match=f"^{name}: is set by LMDBDataset.__init__; .* another name"):
        Own(dataset)


def test_an_attribute_that_a_subclass_replaces_is_its_own(dataset: Path) -> None:
    class Own(LMDBDataset):
        classes = ("a", "b", "c")  # type: ignore[assignment]

    data = Own(dataset)
    data.classes = ("x", "y", "z")  # type: ignore[misc]
    assert data.classes == ("x", "y", "z") and data[0][1] == LMDBDataset(dataset)[0][1]


def test_a_changed_batch_sampler_raises_an_error(data: LMDBDataset) -> None:
    loader = Loader(data, 8, num_workers=0)
    loader.batch_sampler.batch_size = 4
    with pytest.raises(OptionError, match="batch_sampler: cannot be changed on an existing Loader"):
        next(iter(loader))


# --- ImageFolder's lists ---

CHANGES: dict[str, Callable[[Any], object]] = {
    "assignment": lambda samples: samples.__setitem__(0, ("x", 1)),
    "assignment of all": lambda samples: samples.__setitem__(slice(None), []),
    "del": lambda samples: samples.__delitem__(0),
    "append": lambda samples: samples.append(("x", 1)),
    "extend": lambda samples: samples.extend([("x", 1)]),
    "insert": lambda samples: samples.insert(0, ("x", 1)),
    "pop": lambda samples: samples.pop(),
    "remove": lambda samples: samples.remove(samples[0]),
    "clear": lambda samples: samples.clear(),
    "sort": lambda samples: samples.sort(key=str),
    "reverse": lambda samples: samples.reverse(),
    "+=": lambda samples: samples.__iadd__([("x", 1)]),
    "*=": lambda samples: samples.__imul__(2),
    "random.shuffle": random.Random(0).shuffle,
    "numpy's shuffle": np.random.default_rng(0).shuffle,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_samples_refuse_a_change_and_name_the_alternative(change: Callable[[Any], object], either: Any) -> None:
    before = list(either.samples)
    with pytest.raises(OptionError, match=r"^samples: cannot be changed; .*[Ss]ubset"):
        change(either.samples)
    assert either.samples == before and either.imgs == before


def test_samples_are_read_like_a_list(either: Any) -> None:
    samples = either.samples
    expected = [samples[i] for i in range(len(either))]
    assert samples == expected and expected == samples and samples != expected[1:] and samples != 3
    assert [*samples] == [sample for sample in samples] == samples.copy() == list(reversed([*reversed(samples)]))  # noqa: C416
    assert samples[-1] == samples[np.int64(len(either) - 1)] == expected[-1]
    assert samples[1:3] == expected[1:3] and samples[::-2] == expected[::-2]
    assert sorted(samples) == sorted(expected) and max(samples) == max(expected)
    assert expected[1] in samples and ("x", 0) not in samples
    assert (samples.index(expected[1]), samples.count(expected[1])) == (
        expected.index(expected[1]),
        expected.count(expected[1]),
    )
    paths, targets = zip(*samples, strict=True)
    assert list(targets) == either.targets.tolist() and all(isinstance(path, str) for path in paths)
    assert np.array(samples).tolist() == np.array(expected).tolist()
    more = [("x", 1)]
    assert operator.add(samples, more) == expected + more and operator.add(more, samples) == more + expected
    assert samples * 2 == 2 * samples == expected * 2
    assert random.Random(0).sample(samples, 2) == random.Random(0).sample(expected, 2)
    for copied in (copy.copy(samples), copy.deepcopy(samples)):
        copied.append(("x", 1))
        assert copied == [*expected, ("x", 1)]
    for index in (len(either), -len(either) - 1):
        with pytest.raises(IndexError):
            samples[index]
    with pytest.raises(TypeError):
        hash(samples)
    assert repr(samples).startswith(f"Samples({len(either)}: ")
    pickled = pickle.dumps(samples)
    assert pickle.loads(pickled) == samples and (isinstance(either, FolderDataset) or len(pickled) < 1000)


def test_a_sample_is_created_without_the_others(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(1000):
        (tmp_path / "class" / f"{number}.jpg").touch()
    data = FolderDataset(tmp_path)
    _ = data.samples[57]
    tracemalloc.start()
    try:
        assert data.samples[57][0].endswith(".jpg") and tracemalloc.get_traced_memory()[1] < 5000
    finally:
        tracemalloc.stop()


def test_class_to_idx_is_a_dict_that_refuses_changes(either: Any) -> None:
    numbers = either.class_to_idx
    expected = {name: i for i, name in enumerate(either.classes)}
    changes: list[Callable[[Any], object]] = [
        lambda found: found.__setitem__("x", 5), lambda found: found.__delitem__(either.classes[0]),
        lambda found: found.update(x=5), lambda found: found.setdefault("x", 5), lambda found: found.clear(),
        lambda found: found.pop(either.classes[0]), lambda found: found.popitem(),
        lambda found: found.__ior__({"x": 5}),
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(OptionError, match=r"^class_to_idx: cannot be changed, .*dict\(dataset.class_to_idx\)"):
            change(numbers)
    for other in (copy.deepcopy(either), pickle.loads(pickle.dumps(either))):
        with pytest.raises(OptionError, match=r"^class_to_idx: cannot be changed"):
            other.class_to_idx["x"] = 5
    assert isinstance(numbers, dict) and numbers == expected and numbers | {"x": 5} == {**expected, "x": 5}
    assert json.loads(json.dumps(numbers)) == expected
    for copied in (dict(numbers), numbers.copy(), copy.deepcopy(numbers), pickle.loads(pickle.dumps(numbers))):
        copied["x"] = 5
        assert copied == {**expected, "x": 5}
    saved = io.BytesIO()
    torch.save({"class_to_idx": numbers, "classes": either.classes}, saved)
    saved.seek(0)
    assert torch.load(saved) == {"class_to_idx": expected, "classes": either.classes}


def test_writing_to_class_names_and_numbers_changes_no_label(either: Any) -> None:
    before, numbers = [either[i][1] for i in range(3)], dict(either.class_to_idx)
    either.targets[:] = 7
    either.classes.insert(0, "background")
    assert [either[i][1] for i in range(3)] == before == [either.samples[i][1] for i in range(3)]
    assert either.class_to_idx == numbers and set(either.targets) == {7}


@pytest.mark.parametrize(("target", "kind"), [("width", np.int64), ("label", np.int64), ("path", object)])
def test_integers_of_any_column_are_int64_and_text_is_read_only(target: str, kind: Any, dataset: Path) -> None:
    targets = LMDBDataset(dataset, target=target).targets
    assert targets.dtype == kind and targets.flags.writeable == (kind is np.int64)


HOOKS = ["find_classes", "make_dataset", "loader", "is_valid_file"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("kind", [LMDBDataset, FolderDataset])
def test_a_subclass_with_a_hook_that_is_never_called_is_refused(
    hook: str, kind: type[Any], dataset: Path, raw: Path
) -> None:
    own = type("Own", (kind,), {hook: lambda *_: None})
    with pytest.raises(OptionError, match=rf"^Own\.{hook}: {kind.__name__} never calls it; \w"):
        own(dataset if kind is LMDBDataset else raw)


def test_a_subclass_with_other_methods_is_read(dataset: Path) -> None:
    class Own(LMDBDataset):
        loader = None

        def __getitem__(self, index: Any) -> Any:
            return self.samples[index][0]

    paths = Own(dataset)
    assert next(iter(DataLoader(paths, 3))) == [path for path, _ in paths.samples[:3]]


# --- ImageFolder's other names ---

ABSENT = {
    "loader": r"presize reads images by number, not by path; use dataset\[i\]",
    "extensions": "an image may have any name; dataset.samples has the paths",
    "find_classes": "use dataset.classes and dataset.class_to_idx",
    "make_dataset": "use dataset.samples",
}


@pytest.mark.parametrize(("name", "said"), ABSENT.items(), ids=ABSENT)
def test_a_missing_name_of_image_folder_names_the_alternative(name: str, said: str, either: Any) -> None:
    assert not hasattr(either, name) and not hasattr(type(either), name)
    with pytest.raises(AttributeError, match=rf"^{type(either).__name__} has no {name}: {said}$"):
        getattr(either, name)


def test_a_subclass_may_define_such_a_name(dataset: Path) -> None:
    class Own(LMDBDataset):
        extensions = (".jpg",)

        def __init__(self, root: Path) -> None:
            self.loader, self.transforms = len, "set anew"  # type: ignore[assignment,misc]
            super().__init__(root, str)

    data = Own(dataset)
    assert data.extensions == (".jpg",) and data.loader is len and data.transforms.transform is str  # type: ignore[comparison-overlap,union-attr]


@pytest.mark.parametrize("kind", [LMDBDataset, FolderDataset])
def test_image_folders_arguments_are_refused_by_name_unless_they_have_no_effect(
    kind: type[Any], dataset: Path, raw: Path
) -> None:
    root = dataset if kind is LMDBDataset else raw
    said = {
        "loader": f"{kind.__name__} never calls it; presize decodes images; to do it yourself",
        "is_valid_file": f"{kind.__name__} never calls it; its samples are fixed, so select some with .*[Ss]ubset",
        "allow_empty": "class folders without images are always classes; leave it out",
    }
    for name, words in said.items():
        with pytest.raises(OptionError, match=rf"^{name}: {words}"):
            kind(root, **{name: len})
    assert len(kind(root, loader=None, is_valid_file=None)) == len(kind(root))
    with pytest.raises(TypeError, match=rf"{kind.__name__}\(\) got an unexpected keyword argument 'lader'"):
        kind(root, lader=len)


@pytest.mark.parametrize(
    ("make", "theirs"),
    [
        *((kind, ("loader", "is_valid_file", "allow_empty")) for kind in (LMDBDataset, FolderDataset)),
        *((load, inspect.signature(DataLoader).parameters) for load in (Loader, make_loader)),
    ],
)
def test_a_type_checker_knows_each_keyword_that_is_accepted_or_refused(make: Any, theirs: Any) -> None:
    hints = typing.get_type_hints(make.__init__ if isinstance(make, type) else make)
    (options,) = typing.get_args(hints.pop("options"))
    assert set(theirs) <= {*hints, *typing.get_type_hints(options)}


def test_a_class_folder_without_images_is_a_class(tmp_path: Path, raw: Path) -> None:
    full = next(path for path in sorted(raw.iterdir()) if path.is_dir())
    shutil.copytree(full, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    assert FolderDataset(tmp_path).classes == ["empty", "full"]


def test_transforms_combines_both_transforms(either: Any) -> None:
    assert either.transforms is None
    either.transform, either.target_transform = len, str
    both = either.transforms
    assert (both.transform, both.target_transform) == (len, str) and both == either.transforms
    assert both(b"abc", 4) == (3, "4")
    either.transform = None
    assert either.transforms(b"abc", 4) == (b"abc", "4") and both(b"abc", 4) == (3, "4")


def test_labels_are_a_list_of_the_targets(either: Any) -> None:
    labels = either.get_labels()
    assert labels == [label for _, label in either.samples] and {type(label) for label in labels} == {int}
    labels.clear()
    assert either.get_labels() == either.targets.tolist()


def test_labels_of_a_sum_are_those_of_its_parts_and_need_one_column(dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24))
    joined = Loader(ConcatDataset([data, data.subset([3])]), 8, num_workers=0).dataset
    assert joined.get_labels() == [*data.get_labels(), data.get_labels()[3]]
    with pytest.raises(AttributeError, match="target=None: targets needs one column"):
        LMDBDataset(dataset, target=None).get_labels()
