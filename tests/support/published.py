"""Small data sets with the files and lists of well-known ones."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from foreign import picture

BIRDS = ("001.Black_footed_Albatross/Black_Footed_Albatross_0046_18", "002.Laysan_Albatross/Laysan_Albatross_0002_1027")
PETS = ("Abyssinian_100", "beagle_2")
PHOTOS = ("2007_000032", "2008_000008")
CITIES = ("train/aachen/aachen_000000_000019", "val/lindau/lindau_000000_000019")


def _mask() -> bytes:
    """Return a mask of the size of pictures."""
    with Image.open(io.BytesIO(picture(0))) as image:
        mask = Image.new("L", image.size, 3)
    content = io.BytesIO()
    mask.save(content, "PNG")
    return content.getvalue()


def write(folder: Path, *names: str) -> None:
    """Write files by their suffix: images, masks of the same size for .png, and other files."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        contents = dict.fromkeys((".jpg", ".JPEG"), picture(0, "JPEG")) | {".png": _mask()}
        content = contents.get(path.suffix, b"nothing")
        path.write_bytes(content)


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def write_lists(folder: Path) -> None:
    """Write the sources of "Lists as they are published" in docs/data.md."""
    write(folder, *(f"data_256/{name}/00000001.jpg" for name in ("a/airfield", "b/bar")))
    text(folder / "places365_train_standard.txt", "/a/airfield/00000001.jpg 0", "/b/bar/00000001.jpg 1")
    write(folder, "food-101/images/apple_pie/1005649.jpg", "food-101/images/waffles/971843.jpg")
    text(folder / "food-101/meta/train.txt", "apple_pie/1005649", "waffles/971843")
    write(folder, *(f"CUB_200_2011/images/{bird}.jpg" for bird in BIRDS))
    write(folder, *(f"CUB_200_2011/segmentations/{bird}.png" for bird in BIRDS))
    text(folder / "CUB_200_2011/images.txt", *(f"{n} {bird}.jpg" for n, bird in enumerate(BIRDS, 1)))
    text(folder / "CUB_200_2011/train_test_split.txt", "1 0", "2 1")
    write(folder, *(f"images/{pet}.jpg" for pet in PETS), "images/Abyssinian_100.mat")
    write(folder, *(f"annotations/trimaps/{name}.png" for pet in PETS for name in (pet, f"._{pet}")))
    comments = ("#Image CLASS-ID SPECIES BREED ID", "#ID: 1:37 Class ids", "#SPECIES: 1:Cat 2:Dog")
    text(folder / "annotations/list.txt", *comments, "Abyssinian_100 1 1 1", "beagle_2 5 2 1")
    write(folder, "img_align_celeba/000001.jpg", "img_align_celeba/000002.jpg")
    text(
        folder / "list_attr_celeba.txt",
        "2",
        "5_o_Clock_Shadow Male Young ",
        "000001.jpg -1  1  1",
        "000002.jpg  1 -1  1",
    )
    write(folder, "train/000bec180eb18c7604dcecc8fe0dba07.jpg", "train/001513dfcb2ffafc82cccf4d8bbaba97.jpg")
    text(folder / "labels.csv", "id,breed", "000bec180eb18c7604dcecc8fe0dba07,boston_bull",
         "001513dfcb2ffafc82cccf4d8bbaba97,dingo")  # fmt: skip
    write(folder, "val/images/val_0.JPEG", "val/images/val_1.JPEG")
    text(folder / "val/val_annotations.txt", "val_0.JPEG\tn02\t0\t32\t44\t62", "val_1.JPEG\tn03\t2\t0\t63\t63")
    write_voc(folder)


def write_voc(folder: Path) -> None:
    write(folder, *(f"VOC2012/JPEGImages/{photo}.jpg" for photo in (*PHOTOS, "2009_000001")))
    write(folder, *(f"VOC2012/Segmentation{kind}/{photo}.png" for kind in ("Class", "Object") for photo in PHOTOS))
    text(folder / "VOC2012/ImageSets/Main/aeroplane_train.txt", "2007_000032  1", "2008_000008 -1")
    text(folder / "VOC2012/ImageSets/Segmentation/train.txt", *PHOTOS)


KINDS = {"images": "jpg", "masks": "png"}


def write_layouts(folder: Path) -> None:
    """Write pairs in folders named after the rows of the table in docs/pairs.md."""
    write(folder / "images", "images/train/01.jpg", "masks/train/01.png", "images/val/01.jpg", "masks/val/01.png")
    write(folder / "a", "a/01_img.jpg", "a/01_masks.png", "b/01_img.jpg", "b/01_masks.png")
    write(folder / "train", *(f"{split}/{kind}/01.{end}" for split in ("train", "val") for kind, end in KINDS.items()))
    write(folder / "patient", *(f"{one}/{kind}/01.png" for one in ("p1", "p2") for kind in ("images", "masks")))
    write(folder / "Cityscapes", *(f"leftImg8bit/{city}_leftImg8bit.png" for city in CITIES), "license.txt")
    ends = ("color.png", "instanceIds.png", "labelIds.png", "polygons.json")
    write(folder / "Cityscapes", *(f"gtFine/{city}_gtFine_{end}" for city in CITIES for end in ends))
    for split in ("training", "validation"):
        write(
            folder / "ADE20K of 2016",
            f"images/{split}/ADE_1.jpg",
            f"annotations/{split}/ADE_1.png",
            "objectInfo150.txt",
        )
        parts = (".jpg", "_seg.png", "_parts_1.png", ".json")
        write(folder / "all of ADE20K", *(f"images/ADE/{split}/street/ADE_1{part}" for part in parts))
    write_voc(folder)
    (folder / "VOC2012").rename(folder / "VOC")
    text(folder / "voc.csv", "path", *(f"JPEGImages/{photo}" for photo in PHOTOS))
    for bird in BIRDS:
        write(folder / "CUB", f"images/{bird}.jpg", f"segmentations/{bird}.png")
    write(folder / "Pets", "images/beagle_2.jpg", "images/pug_1.jpg", "images/pug_1.mat", "annotations/list.txt")
    write(folder / "Pets", *(f"annotations/trimaps/{name}.png" for name in ("beagle_2", "pug_1", "._pug_1")))
    write(folder / "presize export --to folder", "image/cats/01.jpg", "mask/cats/01.png", "image/dogs/01.jpg",
          "mask/dogs/01.png")  # fmt: skip
