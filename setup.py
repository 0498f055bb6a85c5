"""The compiled JPEG decoder, Pillow's resize and its colours. All else about the package is in pyproject.toml.

One wheel serves Python 3.11 and later: they use the limited API alone. Free-threaded Python has no such API,
and setuptools refuses it there, so each free-threaded version has a wheel of its own.

Where they cannot be compiled, presize is installed without (presize/codecs/jpeg/decoder.py,
presize/codecs/pillow_resize.py, presize/codecs/pillow_color.py), unless PRESIZE_BUILD=strict.
"""

import glob
import os
import sysconfig

from setuptools import Extension, setup

has_limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")
headers = sorted(glob.glob("presize/codecs/**/*.h", recursive=True))


def extension(name: str, *sources: str) -> Extension:
    return Extension(
        f"presize.codecs.{name}",
        [f"presize/codecs/{source}" for source in sources],
        depends=headers,
        extra_compile_args=[
            "-O3",
            "-ffp-contract=off",  # weights are to be the same on all processors
            "-fstrict-overflow",  # Python's own flags let integers wrap round, which makes loops slower
            "-fno-wrapv",
        ],
        libraries=["m"],
        py_limited_api=has_limited_api,
        optional=os.environ.get("PRESIZE_BUILD") != "strict",
    )


passes = [f"resampling/{name}.c" for name in ("tables", "passes", "any", "avx2", "avx512")]
setup(
    ext_modules=[
        extension("_jpeg_decoder", "_jpeg_decoder.c", "jpeg/any.c", "jpeg/avx2.c", "jpeg/avx512.c"),
        extension("_pillow_resize", "_pillow_resize.c", *passes),
        extension("_pillow_color", "_pillow_color.c"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if has_limited_api else {},
)
