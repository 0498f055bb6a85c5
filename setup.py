"""The compiled JPEG decoder, Pillow's resize and its colours. All else about the package is in pyproject.toml.

One wheel serves Python 3.11 and later: they use the limited API alone. Free-threaded Python has no such API,
and setuptools refuses it there, so each free-threaded version has a wheel of its own.

Where they cannot be compiled, presize is installed without (presize/codecs/jpeg/decoder.py,
presize/codecs/pillow_resize.py, presize/codecs/pillow_color.py), unless PRESIZE_BUILD=strict.
"""

import os
import sysconfig

from setuptools import Extension, setup

has_limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")
headers = ("decode", "decoder", "headers", "huffman", "idct", "recode", "vectors")


def extension(name: str, sources: list[str], depends: list[str]) -> Extension:
    return Extension(
        name,
        sources,
        depends=depends,
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


decoder = extension(
    "presize.codecs._jpeg_decoder",
    ["presize/codecs/_jpeg_decoder.c", "presize/codecs/jpeg/any.c", "presize/codecs/jpeg/avx2.c"],
    ["presize/codecs/row_sink.h", *(f"presize/codecs/jpeg/{name}.h" for name in headers)],
)
pillow_resize = extension(
    "presize.codecs._pillow_resize",
    ["presize/codecs/_pillow_resize.c"]
    + [f"presize/codecs/resampling/{name}.c" for name in ("tables", "passes", "any", "avx2", "avx512")],
    ["presize/codecs/row_sink.h", "presize/codecs/resampling/resampling.h", "presize/codecs/resampling/kernels.h"],
)
pillow_color = extension("presize.codecs._pillow_color", ["presize/codecs/_pillow_color.c"], [])
setup(
    ext_modules=[decoder, pillow_resize, pillow_color],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if has_limited_api else {},
)
