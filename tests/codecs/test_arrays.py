"""Arrays stored with images: every .npy of numbers is read as NumPy reads it, and nothing else is read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from pictures import saved
from presize.codecs.arrays import HEADER_BYTES, decode_array, encode_array
from presize.codecs.transcode import transcode_companion
from presize.errors import ImageError
from presize.options import Companion, Fit, ImageOptions, Size

DTYPES = [np.dtype(order + kind) for kind in "b1 i1 u2 i4 u8 f2 f4 f8 c8 c16".split() for order in "<>"]
SHAPES = arrays_of.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)


def npy(values: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(values), version)
    return file.getvalue()


def with_header(text: str, numbers: bytes = bytes(64)) -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + numbers


ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays_of.arrays(dtype, SHAPES))


@given(values=ARRAYS, fortran=st.booleans(), version=st.sampled_from([(1, 0), (2, 0), (3, 0)]))
def test_an_array_is_read_and_stored_as_numpy_does(values: np.ndarray, fortran: bool, version: tuple[int, int]) -> None:
    data = npy(np.asfortranarray(values) if fortran else values, version)
    read = decode_array(data)
    assert read.dtype == values.dtype.newbyteorder("=") and read.flags.c_contiguous and read.flags.writeable
    assert read.tobytes() == values.astype(read.dtype, "C").tobytes() and read.shape == values.shape
    stored = encode_array(read)
    assert len(stored) == HEADER_BYTES + values.nbytes
    assert stored == npy(np.ascontiguousarray(read).reshape(read.shape))


@given(data=ARRAYS.map(npy), changes=st.dictionaries(st.integers(0, 127), st.integers(0, 255), max_size=4))
def test_a_damaged_header_is_refused_or_describes_the_data(data: bytes, changes: Mapping[int, int]) -> None:
    damaged = bytearray(data)
    for place, byte in changes.items():
        damaged[place] = byte
    try:
        values = decode_array(bytes(damaged))
    except ValueError:
        return
    assert values.nbytes <= len(data)


REFUSED = {
    "objects": (npy(np.array([{}, None])), "an array of Python objects; "),
    "several fields": (npy(np.zeros(3, [("x", "<f4"), ("y", "<i2")])), "an array of several fields; "),
    "texts": (npy(np.array(["a"])), "an array of 'U1'; expected numbers of up to 64 bits, or complex ones "),
    "dates": (npy(np.zeros(3, "datetime64[s]")), r"an array of 'M8\[s\]'; "),
    "more bits than others": (npy(np.zeros(3, np.longdouble)), "an array of 'f16'; "),
    "no axis": (npy(np.float32(3)), r"an array of shape \(\); expected 1 to 3 axes"),
    "four axes": (npy(np.zeros((1, 2, 3, 4))), r"an array of shape \(1, 2, 3, 4\); expected 1 to 3 axes"),
    "a huge axis of nothing": (
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 99999999999), }"),
        "each of less than",
    ),
    "more than there is": (
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (100000, 100000, 9), }"),
        "it has 146 bytes, but its header says 720,000,000,082",
    ),
    "cut short": (npy(np.zeros(30))[:-1], "it has 367 bytes, but its header says 368"),
    "no shape": (with_header("{'descr': '<f8', 'fortran_order': False}"), "the .npy header lacks fortran_order"),
    "a huge header": (b"\x93NUMPY\2\0" + (1 << 30).to_bytes(4, "little") + bytes(99), "its header has 1,073,741,824 "),
    "code": (with_header("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}"), "several fields"),
    "deep nesting": (with_header("(" * 9000 + "{'fortran_order': False, 'shape': (1,)}"), "several fields"),
    "the magic alone": (b"\x93NUMPY\1\0", "not a .npy file: wrong first bytes"),
    "an archive": (b"PK\3\4" + bytes(99), "a zip archive, such as .npz or .pt"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_files_that_are_not_arrays_of_numbers_are_refused_and_never_unpickled(what: str) -> None:
    data, reason = REFUSED[what]
    with pytest.raises(ImageError, match=reason):
        transcode_companion(data, Size(8, 8), ImageOptions(), is_array=True)


# Stored arrays


OPTIONS = Companion("depth", "{stem}.npy").image_options(ImageOptions(sizes=(Size(6, 6), Size(24, 24))))


def stored(data: bytes, source: Size, options: ImageOptions = OPTIONS) -> list[np.ndarray]:
    return [decode_array(value) for value, _, _ in transcode_companion(data, source, options, is_array=True).records]


@pytest.mark.parametrize("fit", ["shorter", "crop", "pad", "stretch"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64, np.complex64])
def test_an_array_with_the_shape_of_its_image_is_resized_like_a_mask(dtype: Any, fit: Fit) -> None:
    mask = np.arange(12 * 15, dtype=np.uint8).reshape(12, 15)
    options = ImageOptions(sizes=(Size(6, 6), Size(9, 7)), fit=fit, format="raw", filter="nearest")
    made = transcode_companion(saved(mask, "PNG"), Size(12, 15), options).records
    planes = np.stack((mask, mask + 1), axis=2).astype(dtype)
    for data in (planes, planes.transpose(2, 0, 1)):
        for found, (value, *shape) in zip(stored(npy(data), Size(12, 15), options), made, strict=True):
            expected = np.frombuffer(value, np.uint8).reshape(shape)
            assert found.dtype == dtype and found.shape == (*shape, 2)
            assert np.array_equal(found[:, :, 0], expected.astype(dtype))


@pytest.mark.parametrize("shape", [(5,), (12, 14), (15, 12), (3, 12, 14), (0, 4), (12, 1, 15)])
def test_any_other_array_is_stored_unchanged(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(">f4")
    found = stored(npy(values), Size(12, 15))
    assert all(one.dtype == "<f4" and np.array_equal(one, values) for one in found)


@pytest.mark.parametrize(
    ("dtype", "format"), [("u1", "PNG"), ("u2", "PNG"), ("u2", "TIFF"), ("i4", "TIFF"), ("f4", "TIFF")]
)
def test_an_image_of_numbers_may_be_stored_as_an_array(dtype: str, format: str) -> None:
    values = (np.arange(20).reshape(4, 5) * 3 - (40 if dtype in ("i4", "f4") else 0)).astype(dtype)
    (found, _) = stored(saved(values, format), Size(4, 5))
    assert found.dtype == dtype and np.array_equal(found, values)


# OpenEXR


@pytest.fixture
def exr(tmp_path: Any) -> Any:
    OpenEXR = pytest.importorskip("OpenEXR")

    def write(channels: dict[str, np.ndarray]) -> bytes:
        header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
        with OpenEXR.File(header, channels) as file:
            file.write(str(tmp_path / "0.exr"))
        return (tmp_path / "0.exr").read_bytes()

    return write


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint32])
def test_one_channel_of_openexr_is_an_array_and_so_are_r_g_and_b(exr: Any, dtype: Any) -> None:
    plane = np.arange(20, dtype=dtype).reshape(4, 5)
    for name in ("Y", "Z", "depth"):
        (found, _) = stored(exr({name: plane}), Size(4, 5))
        assert found.dtype == dtype and np.array_equal(found, plane)
    (found, _) = stored(exr({"R": plane, "G": plane + 1, "B": plane + 2}), Size(4, 5))
    assert np.array_equal(found, np.stack((plane, plane + 1, plane + 2), axis=2))


def test_other_channels_and_broken_files_of_openexr_are_refused(exr: Any) -> None:
    plane = np.zeros((4, 5), np.float32)
    good = exr({"Y": plane})
    for data, reason in (
        (exr({"Y": plane, "Z": plane}), "its channels are Y, Z; expected one, or R, G and B, without subsampling"),
        (good[:60], "broken EXR: "),
        (good[:-9], "broken EXR: "),
    ):
        with pytest.raises(ImageError, match=reason):
            stored(data, Size(4, 5))
    with pytest.raises(ImageError, match=r"5 x 4 pixels, more than max_pixels allows \(19\)"):
        stored(good, Size(4, 5), ImageOptions(format="raw", filter="nearest", max_pixels=19))


def test_a_missing_openexr_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "OpenEXR", None)
    with pytest.raises(ImageError, match=r'OpenEXR, which is not installed: pip install "presize\[exr\]"'):
        stored(b"v/1\x01" + bytes(99), Size(4, 5))
