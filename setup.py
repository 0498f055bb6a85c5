"""The compiled JPEG decoder. All else about the package is in pyproject.toml.

One wheel serves Python 3.11 and later: the decoder uses the limited API alone. Free-threaded Python has no such API,
and setuptools refuses it there, so each free-threaded version has a wheel of its own.

Where the decoder cannot be compiled, presize is installed without it (presize/codecs/jpeg_decoder.py), unless
PRESIZE_BUILD=strict.
"""

import os
import sysconfig

from setuptools import Extension, setup

has_limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")
headers = ("decode", "decoder", "headers", "huffman", "idct", "recode", "vectors")
decoder = Extension(
    "presize.codecs._jpeg_decoder",
    ["presize/codecs/_jpeg_decoder.c", "presize/codecs/jpeg/any.c", "presize/codecs/jpeg/avx2.c"],
    depends=[f"presize/codecs/jpeg/{name}.h" for name in headers],
    extra_compile_args=["-O3"],
    py_limited_api=has_limited_api,
    optional=os.environ.get("PRESIZE_BUILD") != "strict",
)
setup(ext_modules=[decoder], options={"bdist_wheel": {"py_limited_api": "cp311"}} if has_limited_api else {})
