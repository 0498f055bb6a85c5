"""A folder of JPEGs in a DataLoader, read like ImageFolder: Pillow and torchvision's transforms."""

from __future__ import annotations

import torch
from loading import chosen, contents, parser, run
from pil_crop import PACKAGES, cropped
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return cropped(contents(self.names[i])), i % 1000


def main() -> None:
    options = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    data = Files(chosen(options))
    run(
        lambda: DataLoader(
            data, options.batch, shuffle=True, drop_last=True, num_workers=options.workers, persistent_workers=True
        ),
        options,
        *PACKAGES,
    )


if __name__ == "__main__":
    main()
