"""FolderDataset: a folder of image files, raw or presized; a baseline that does not need torchvision."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsIndex, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch.utils.data

from presize.codecs.decode import decode as decode_image
from presize.datasets.read_only import (
    ImageFolderNames,
    ImageFolderOptions,
    check_hooks,
    names_instead,
    position,
    read_only,
)
from presize.datasets.reading.stored_image import Decode, check_decode, to_output
from presize.errors import ImageError
from presize.options import check_function
from presize.system.files import expanded

_SUBSET = "torch.utils.data.Subset(dataset, indices)"


@read_only("make another FolderDataset with it", **names_instead(_SUBSET, "use target_transform"))
class FolderDataset(ImageFolderNames, torch.utils.data.Dataset[Any]):
    """A dataset of the images under `root`, in ImageFolder's order. Each image is decoded when it is read.

    The list of files is an Arrow array. Thread-safe. Works in DataLoader workers with every start method.

    Args:
        root: a folder of class folders, or of images (without targets). The dataset has the images that a build would
            store: files with the suffix of an image format, and others whose content is an image. Pixels are upright
            RGB.
        transform, target_transform, decode, options: as in LMDBDataset. The first two can be assigned later.

    Raises:
        SourceError: `root` contains no images.
    """

    _subset = _SUBSET

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: Decode = "pil",
        **options: Unpack[ImageFolderOptions],
    ) -> None:
        check_hooks(self, FolderDataset, options)
        check_decode(decode)
        self.root = expanded(root)
        check_function("transform", transform)
        check_function("target_transform", target_transform)
        self.transform = transform
        self.target_transform = target_transform
        self.decode: Decode = decode
        from presize.sources.scan import scan_images  # imports label parsers, which LMDBDataset does not need

        source = scan_images(root)
        self._folder = os.fspath(source.root)  # absolute: the working directory may change
        self.classes: list[str] | None = None if source.classes is None else list(source.classes)
        self._class_names = tuple(source.classes or ())
        self._paths: pa.LargeStringArray = source.table.column("path").combine_chunks()
        self._targets: npt.NDArray[Any] | None = None
        self._own_targets: npt.NDArray[np.int64] | None = None
        if source.classes is not None:
            self._targets = source.table.column("label").to_numpy()
        self._is_finished = True

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return the sample at `index`, from -len to len - 1: (image, class number), or only the image. Raises
        IndexError, and an ImageError that names the file."""
        i = position(index, len(self), f" of {self.root}")
        path = Path(self._folder, self._paths[i].as_py())
        try:
            data = path.read_bytes()
            image: Any = data if self.decode == "bytes" else to_output(decode_image(data).pixels, self.decode)
        except OSError as error:
            raise ImageError(f"{path}: {error.strerror}") from None
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from None
        if self.transform is not None:
            image = self.transform(image)
        if self._targets is None:
            return image
        target = self._targets.item(i)
        return image, target if self.target_transform is None else self.target_transform(target)

    @property
    def targets(self) -> npt.NDArray[np.int64]:
        """The class numbers of all samples in one array. It is a copy, made at first use: as in ImageFolder, writing to
        it does not change the samples. AttributeError without class folders."""
        if self._targets is None:
            raise AttributeError(f"{self.root} has no class folders, so no targets")
        if self._own_targets is None:
            self._own_targets = self._targets.astype(np.int64)
        return self._own_targets

    def path_and_target(self, index: int) -> tuple[str, Any]:
        """Return the path and the target of sample `index`, from 0."""
        path = os.path.join(self.root, self._paths[index].as_py())
        return path, None if self._targets is None else self._targets.item(index)

    def __repr__(self) -> str:
        return f"FolderDataset({self.root!r}, {len(self)} samples, decode={self.decode!r})"
