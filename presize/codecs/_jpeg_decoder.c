/* A decoder of baseline JPEG: bit-identical to libjpeg-turbo, and faster.

   Huffman decoding takes two thirds of the time to decode a photograph. This decoder first removes stuffed zero bytes
   from a scan. One table look-up then returns everything that a code means, and the coefficient follows without a
   branch. With a tile index (docs/format.md), only the tiles under a box are read. At 1/2, 1/4 and 1/8, the inverse DCT
   computes only the smaller blocks; where only DC coefficients are needed, one look-up skips several codes.

       headers.h     parses everything before the scan
       huffman.h     bits to coefficients
       idct.h        coefficients to samples
       decode.h      samples to pixels, and the decoder, which combines these steps
       recode.h      recodes bits with other restart intervals
       vectors.h     common names for AVX-512, AVX2, SSE2 and NEON
       any.c avx2.c  compile decode.h and recode.h for each kind of processor
       avx512.c      compiles decode.h

   Everything unusual (progressive and other processes, damage, anything that a decoder would warn about) is left to
   libjpeg-turbo: decode() returns False. The input may be malicious: each length is checked before it is used, sizes
   have 64 bits, and each restart interval is followed by more memory than an MCU can consume.
   tools/fuzz_jpeg_decoder.py and tests/fuzz/jpeg_decoder.c test this; the latter includes this file without Python. */

#ifndef WITHOUT_PYTHON
#include "module.h"
#endif

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "jpeg/decoder.h"

/* Write the lengths of `tiles` tiles, from `at` to `end`, to `lengths` in the format of the index. Return false if the
   number of tiles differs, one is longer than 65,535 bytes, or one ends with the wrong marker. */
static bool measure_tiles(const uint8_t *at, const uint8_t *end, int64_t tiles, uint8_t *lengths)
{
    for (int64_t tile = 0; tile < tiles; tile++) {
        const uint8_t *begin = at;
        while ((at = memchr(at, 0xFF, (size_t)(end - at))) && end - at >= 2 && at[1] == 0)
            at += 2;
        int marker = tile + 1 == tiles ? 0xD9 : 0xD0 + (int)(tile & 7);
        if (!at || end - at < 2 || at[1] != marker || (at += 2) - begin > 0xFFFF)
            return false;
        lengths[2 * tile] = (uint8_t)((at - begin) >> 8);
        lengths[2 * tile + 1] = (uint8_t)(at - begin);
    }
    return at == end;
}

/* ---- the module ---- */

#ifndef WITHOUT_PYTHON

static PyObject *decode_with_request(const Request *request)
{
    bool done;
    Level level = level_in_use();
    Py_BEGIN_ALLOW_THREADS
    done = decode_with(level, request);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(done);
}

static PyObject *decode(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer data, out;
    int channels, height, width, top, left, box_height, box_width, scale;
    if (!PyArg_ParseTuple(arguments, "y*w*i(ii)(iiii)i", &data, &out, &channels, &height, &width, &top, &left,
                          &box_height, &box_width, &scale))
        return NULL;
    PyObject *result = NULL;
    Box box = {top, left, (int64_t)top + box_height, (int64_t)left + box_width};
    if (height > 0xFFFF || width > 0xFFFF)
        PyErr_SetString(PyExc_ValueError, "no JPEG has such a shape");
    else if (scale != 1 && scale != 2 && scale != 4 && scale != 8)
        PyErr_SetString(PyExc_ValueError, "scale: expected 1, 2, 4 or 8");
    else if (top < 0 || left < 0 || box_height < 1 || box_width < 1 || box.bottom > (height + scale - 1) / scale ||
             box.right > (width + scale - 1) / scale)
        PyErr_SetString(PyExc_ValueError, "the box does not lie in the image");
    else if (channels != 1 && channels != 3 && channels != 4)
        PyErr_SetString(PyExc_ValueError, "channels: expected 1, 3 or 4");
    else if (out.len < (int64_t)box_height * box_width * channels)
        PyErr_SetString(PyExc_ValueError, "out is too small");
    else {
        const uint8_t *bytes = data.buf;
        Request request = {bytes, bytes + data.len, height, width, scale, box, channels, out.buf, NULL};
        result = decode_with_request(&request);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return result;
}

static PyObject *decode_into(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer data;
    PyObject *capsule;
    int channels, height, width, scale;
    if (!PyArg_ParseTuple(arguments, "y*Oi(ii)i", &data, &capsule, &channels, &height, &width, &scale))
        return NULL;
    PyObject *result = NULL;
    RowSink *sink = PyCapsule_GetPointer(capsule, ROW_SINK);
    if (sink && (height < 1 || width < 1 || height > 0xFFFF || width > 0xFFFF))
        PyErr_SetString(PyExc_ValueError, "no JPEG has such a shape");
    else if (sink && scale != 1 && scale != 2 && scale != 4 && scale != 8)
        PyErr_SetString(PyExc_ValueError, "scale: expected 1, 2, 4 or 8");
    else if (sink && channels != 1 && channels != 3 && channels != 4)
        PyErr_SetString(PyExc_ValueError, "channels: expected 1, 3 or 4");
    else if (sink) {
        const uint8_t *bytes = data.buf;
        Box box = {0, 0, (height + scale - 1) / scale, (width + scale - 1) / scale};
        if (sink->height != box.bottom || sink->row_bytes != box.right * channels)
            PyErr_SetString(PyExc_ValueError, "the rows are those of an image of another size");
        else {
            Request request = {bytes, bytes + data.len, height, width, scale, box, channels, NULL, sink};
            result = decode_with_request(&request);
        }
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *recode(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer data, out;
    int interval;
    if (!PyArg_ParseTuple(arguments, "y*w*i", &data, &out, &interval))
        return NULL;
    PyObject *result = NULL;
    if (interval < 1 || interval > 0xFFFF)
        PyErr_SetString(PyExc_ValueError, "interval: expected 1 to 65535");
    else {
        const uint8_t *bytes = data.buf;
        int64_t written;
        Level level = level_in_use();
        Py_BEGIN_ALLOW_THREADS
        written = recode_with(level, bytes, bytes + data.len, interval, out.buf, out.len);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLongLong(written);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return result;
}

static PyObject *tile_lengths(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer data;
    Py_ssize_t scan, tiles;
    if (!PyArg_ParseTuple(arguments, "y*nn", &data, &scan, &tiles))
        return NULL;
    PyObject *result = NULL;
    if (scan < 0 || scan > data.len || tiles < 1 || tiles > data.len)
        PyErr_SetString(PyExc_ValueError, "scan or tiles does not fit data");
    else if ((result = PyBytes_FromStringAndSize(NULL, 2 * tiles))) {
        const uint8_t *bytes = data.buf;
        if (!measure_tiles(bytes + scan, bytes + data.len, tiles, (uint8_t *)PyBytes_AsString(result))) {
            Py_DECREF(result);
            result = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, NULL},
    {"decode_into", decode_into, METH_VARARGS, NULL},
    {"recode", recode, METH_VARARGS, NULL},
    {"tile_lengths", tile_lengths, METH_VARARGS, NULL},
    {"limit", limit, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

MODULE(_jpeg_decoder)

#endif
