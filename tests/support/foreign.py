"""Sources that other programs write: LMDBs, tars and Parquet files with small pictures."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import lmdb
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from pictures import smooth_image

FIXTURES = Path(__file__).parent.parent / "fixtures" / "imports"


def picture(number: int, kind: str = "PNG") -> bytes:
    """Return an encoded picture; each number below 50 has another size."""
    buffer = io.BytesIO()
    Image.fromarray(smooth_image(20, 24 + number % 50, seed=number)).save(buffer, kind)
    return buffer.getvalue()


def write_lmdb(path: Path, records: Mapping[str | bytes, bytes], *, subdir: bool = True, **options: object) -> Path:
    """Write an LMDB with plain lmdb, one record after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=1 << 26, subdir=subdir, lib_version=0, **options) as env:
        with env.begin(write=True) as txn:
            for key, value in records.items():
                txn.put(key.encode() if isinstance(key, str) else key, value)
    return path


def text_recognition(path: Path, texts: Sequence[str]) -> Path:
    """Write the layout of CRNN and its descendants."""
    records: dict[str | bytes, bytes] = {}
    for number, text in enumerate(texts, 1):
        records[f"image-{number:09d}"] = picture(number)
        records[f"label-{number:09d}"] = text.encode()
    return write_lmdb(path, records | {"num-samples": str(len(texts)).encode()})


def tar_bytes(files: Sequence[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, **pax_headers: str) -> bytes:
    with tarfile.open(fileobj=(stream := io.BytesIO()), mode="w", format=form) as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = len(content), pax_headers
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def write_tar(path: Path, files: Sequence[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(files, form))
    return path


def tar_samples(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    """Return pictures with a class each, as WebDataset lays them out."""
    return [
        file
        for number in range(first, first + count)
        for file in ((f"{number:06d}.png", picture(number)), (f"{number:06d}.cls", b"%d" % (number % 3)))
    ]


def write_parquet(path: Path, columns: Mapping[str, object], group_rows: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pa.parquet.write_table(pa.table(dict(columns)), path, row_group_size=group_rows)
    return path


def image_column(images: Sequence[bytes | None], paths: Sequence[str | None] | None = None) -> pa.Array:
    """Return a column of Hugging Face's {bytes, path}."""
    names = paths or [None] * len(images)
    rows = [{"bytes": image, "path": name} for image, name in zip(images, names, strict=True)]
    return pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def write_sources(folder: Path) -> None:
    """Write the sources that docs/imports.md imports."""
    write_tar(folder / "SHARDS" / "shard-000000.tar", tar_samples(12))
    shutil.copytree(FIXTURES / "datasets", folder / "HUB")
    text_recognition(folder / "TEXT", ["Hello", "World"])
    text_recognition(folder / "NUMBERED", ["7", "3"])
    coco = {
        "images": [{"id": 9, "file_name": "9.png"}, {"id": 4, "file_name": "4.png"}],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {"image_id": 9, "category_id": 18, "bbox": [1.5, 2, 3, 4]},
            {"image_id": 9, "category_id": 17, "bbox": [5, 6, 7, 8]},
        ],
    }
    voc = """<annotation><filename>1.png</filename>
        <object><name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object>
        <object><name>dog</name><bndbox><ymin>6</ymin><xmin>5</xmin><xmax>7</xmax><ymax>8</ymax></bndbox></object>
        </annotation>"""
    images = {
        "COCO/val2017/9.png": picture(9),
        "COCO/val2017/4.png": picture(4),
        "VOC/JPEGImages/1.png": picture(1),
        "YOLO/images/a/1.jpg": picture(1, "JPEG"),
    }
    texts = {
        "COCO/instances.json": json.dumps(coco).encode(),
        "VOC/Annotations/1.xml": voc.encode(),
        "YOLO/labels/a/1.txt": b"2 0.5 0.5 0.4 0.2\n",
    }
    for name, content in (images | texts).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
