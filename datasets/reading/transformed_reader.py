"""TransformedReader: batches of crops with a transform called for each, in memory that the caller provides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from presize.datasets.applied import EachView, apply
from presize.datasets.reading.batch import TensorFormat, new_batch, tensors_over
from presize.datasets.reading.batch_reader import BatchReader, Ints, Pixels, Skipped
from presize.datasets.reading.draws import uniform
from presize.datasets.reading.outputs import Decode, images_of
from presize.errors import DatasetError, OptionError

_STREAM = -1
"""In the place of a view's number: seeds are independent of what crops are drawn from."""

Visits = tuple[Ints, int, int, Ints]
"""(samples, seed, epoch, keys), as for BatchReader.read."""

Transformed = tuple[int, list[torch.Tensor], TreeSpec]
"""A sample, and what a transform gave of it: tensors, and how they belong together."""


class TransformedReader:
    """Reads crops, and calls a transform with each, as LMDBDataset does: with each view, or with the image beside its
    companions. Picklable if the transform is.

    Where it `is_seeded`, torch's, NumPy's and Python's generators are seeded for each visit, from (seed, epoch, key),
    and put back after each batch. Threads share them, so that for several it has to be False.
    """

    formats: Sequence[TensorFormat]  # set by learn()
    _spec: TreeSpec

    def __init__(self, reader: BatchReader, transform: Callable[[Any], Any], decode: Decode, is_seeded: bool) -> None:
        self._reader, self._transform, self._decode, self._is_seeded = reader, transform, decode, is_seeded

    def learn(self, batches: Iterable[Visits]) -> None:
        """Set `formats` to those of the first sample of `batches`, which are not empty, that can be read."""
        found: list[Transformed] = []
        for samples, seed, epoch, keys in batches:
            for at in range(len(samples)):
                one = slice(at, at + 1)
                skipped = self._each(samples[one], seed, epoch, keys[one], found.append)
                if found:
                    _, tensors, self._spec = found[0]
                    self._described = _described(tensors)
                    self.formats = [TensorFormat.of(tensor) for tensor in tensors]
                    return
        raise DatasetError(skipped[0].reason)

    def read(self, out: Sequence[Pixels], samples: Ints, seed: int, epoch: int, keys: Ints) -> list[Skipped]:
        """As BatchReader.read."""
        batch, rows = tensors_over(self.formats, out), count()

        def take(result: Transformed) -> None:
            sample, tensors, spec = result
            described = _described(tensors)
            if spec != self._spec or described != self._described:
                raise OptionError(
                    f"transform: gives {described} of {self._name(sample)}, and {self._described} of the first "
                    "sample; batches of a Loader have one shape, use make_loader for others"
                )
            row = next(rows)
            for stacked, tensor in zip(batch, tensors, strict=True):
                stacked[row].copy_(tensor)

        return self._each(samples, seed, epoch, keys, take)

    def structured(self, tensors: Sequence[torch.Tensor]) -> Any:
        """As BatchReader.structured."""
        return tree_unflatten(list(tensors), self._spec)

    def _each(
        self,
        samples: Ints,
        seed: int,
        epoch: int,
        keys: Ints,
        take: Callable[[Transformed], object],
    ) -> list[Skipped]:
        """Read samples, and call `take` with the result of each."""
        out, batch = new_batch(self._reader.formats, len(samples))
        skipped = self._reader.read(out, samples, seed, epoch, keys)
        kept = np.delete(np.arange(len(samples)), [position for position, _ in skipped])
        views = self._reader.views
        parts = [images_of(tensor[: len(kept)], self._decode) for tensor in batch[:views]]
        parts += [tensor[: len(kept)].unbind() for tensor in batch[views:]]
        seeds = (uniform(seed, epoch, keys[kept], 1, _STREAM)[:, 0] * 2**53).astype(np.int64).tolist()
        with _generators_kept() if self._is_seeded else nullcontext():
            for sample, chosen, *images in zip(samples[kept].tolist(), seeds, *parts, strict=True):
                if self._is_seeded:
                    _seed_generators(chosen)
                try:
                    result = self._transformed(images)
                    leaves, spec = tree_flatten(result)
                    tensors = [_as_tensor(leaf) for leaf in leaves or [result]]
                except Exception as error:  # whatever a transform raises goes to the caller, who learns of which sample
                    error.add_note(f"in the transform of {self._name(sample)}")
                    raise
                take((sample, tensors, spec))
        return skipped

    def _transformed(self, images: Sequence[Any]) -> Any:
        views = self._reader.views
        if not self._reader.gives_tuples:
            return apply(self._transform, images[0])
        if isinstance(self._transform, EachView):
            return self._transform(images)
        return (*(apply(self._transform, image) for image in images[:views]), *images[views:])

    def _name(self, sample: int) -> str:
        data = self._reader.data
        return f"sample {sample} ({data.path(sample)}) of {data.root}"


def _described(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in tensors)


def _as_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().as_subclass(torch.Tensor)
    if isinstance(leaf, Image.Image):
        pixels = torch.from_numpy(np.array(leaf))
        return pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels.unsqueeze(0)
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(np.require(leaf, requirements=("C", "W")))
    if isinstance(leaf, (int, float, np.generic)):
        return torch.as_tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None, device="cpu")
    raise OptionError(
        f"transform: gives {type(leaf).__name__}; a Loader's batches are of tensors, arrays, images and numbers, use "
        "make_loader for others"
    )


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Put torch's, NumPy's and Python's generators back afterwards: in the caller's process, others draw from them."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _seed_generators(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
