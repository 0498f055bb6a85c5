/* Python interface of resampling/ (see resampling/resampling.h): resizes 8-bit images like Pillow, byte for byte.

   The contents of a table are trusted, since make_table wrote them. Its sizes are compared with those of the image. */

#include <stdlib.h>

#include "module.h"
#include "resampling/resampling.h"

static PyObject *table(PyObject *self, PyObject *arguments)
{
    (void)self;
    Axis axis = {0};
    int filter, mirrored, flipped, level;
    if (!PyArg_ParseTuple(arguments, "iffiiippi|iiii", &axis.inputs, &axis.begin, &axis.end, &axis.outputs, &filter,
                          &axis.channels, &mirrored, &flipped, &level, &axis.whole_inputs, &axis.whole_outputs,
                          &axis.skipped_inputs, &axis.skipped_outputs))
        return NULL;
    if (filter < 0 || filter >= FILTERS || axis.channels < 0 || axis.channels > MOST_CHANNELS || level < 0 ||
        level >= LEVELS) {
        PyErr_SetString(PyExc_ValueError, "there is no such filter, number of channels or level");
        return NULL;
    }
    axis.filter = (Filter)filter;
    axis.mirrored = mirrored;
    axis.flipped = flipped;
    axis.level = (Level)level;
    int64_t bytes;
    bool is_for_us;
    void *memory;
    Py_BEGIN_ALLOW_THREADS
    memory = make_table(&axis, &bytes, &is_for_us);
    Py_END_ALLOW_THREADS
    if (!is_for_us)
        return Py_NewRef(Py_None);
    if (!memory)
        return PyErr_NoMemory();
    PyObject *result = PyBytes_FromStringAndSize(memory, (Py_ssize_t)bytes);
    free(memory);
    return result;
}

static Py_ssize_t channels_of(const Py_buffer *view) { return view->ndim == 3 ? view->shape[2] : 1; }

/* Return whether the pixels of each row are adjacent, from left to right. */
static bool is_image(const Py_buffer *view)
{
    if ((view->ndim != 2 && view->ndim != 3) || view->itemsize != 1)
        return false;
    for (int axis = 0; axis < 2; axis++)
        if (view->shape[axis] < 1 || view->shape[axis] > MOST_SIDE)
            return false;
    const Py_ssize_t channels = channels_of(view);
    return channels >= 1 && channels <= MOST_CHANNELS && (channels == 1 || view->strides[2] == 1) &&
           (view->shape[1] == 1 || view->strides[1] == channels);
}

static bool is_contiguous(const Py_buffer *view)
{
    return view->shape[0] == 1 || view->strides[0] == view->shape[1] * channels_of(view);
}

/* Read a table into `*found`, NULL for None. Return false if it is not for these sizes. */
static bool read_axis(const Py_buffer *bytes, Py_ssize_t inputs, Py_ssize_t outputs, Py_ssize_t channels, int level,
                      Table *table, const Table **found)
{
    *found = bytes->buf ? table : NULL;
    if (!bytes->buf)
        return inputs == outputs;
    return read_table(bytes->buf, bytes->len, (int32_t)inputs, (int32_t)outputs, (int32_t)channels, (Level)level, table);
}

static PyObject *resize_views(const Py_buffer *from, const Py_buffer *to, const Py_buffer *across_bytes,
                              const Py_buffer *down_bytes, bool vertical_first, int level, bool has_alpha)
{
    if (!is_image(from) || !is_image(to) || !is_contiguous(to) || from->ndim != to->ndim ||
        channels_of(from) != channels_of(to)) {
        PyErr_SetString(PyExc_ValueError, "the pixels of an image do not lie side by side, or it has other channels");
        return NULL;
    }
    const Py_ssize_t channels = channels_of(from);
    Table across_table, down_table;
    const Table *across, *down;
    /* Tables of the vertical axis do not depend on the level. */
    if (!read_axis(across_bytes, from->shape[1], to->shape[1], channels, level, &across_table, &across) ||
        !read_axis(down_bytes, from->shape[0], to->shape[0], 0, ANY, &down_table, &down) || (!across && !down)) {
        PyErr_SetString(PyExc_ValueError, "the tables are those of other sizes");
        return NULL;
    }
    if (has_alpha && (channels != 4 || !across || !down || vertical_first)) {
        PyErr_SetString(PyExc_ValueError, "alpha: expected four channels, both tables, and the horizontal pass first");
        return NULL;
    }
    Image image = {from->buf, from->shape[0] == 1 ? 0 : from->strides[0], from->shape[0], from->shape[1],
                   (int32_t)channels, has_alpha};
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = resample(&image, across, down, vertical_first, (Level)level, to->buf);
    Py_END_ALLOW_THREADS
    return done ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

static PyObject *resize(PyObject *self, PyObject *arguments)
{
    (void)self;
    PyObject *pixels, *out, *result = NULL;
    Py_buffer across, down, from, to;
    int vertical_first, level, has_alpha = false;
    if (!PyArg_ParseTuple(arguments, "OOz*z*pi|p", &pixels, &out, &across, &down, &vertical_first, &level, &has_alpha))
        return NULL;
    if (level < ANY || level > (int)best_level())
        PyErr_SetString(PyExc_ValueError, "this processor has no such level");
    else if (!PyObject_GetBuffer(pixels, &from, PyBUF_STRIDES)) {
        if (!PyObject_GetBuffer(out, &to, PyBUF_STRIDES | PyBUF_WRITABLE)) {
            result = resize_views(&from, &to, &across, &down, vertical_first, level, has_alpha);
            PyBuffer_Release(&to);
        }
        PyBuffer_Release(&from);
    }
    PyBuffer_Release(&across);
    PyBuffer_Release(&down);
    return result;
}

/* ---- row by row ---- */

/* Objects that a RowSink keeps alive. */
typedef struct {
    Py_buffer across, down, to;
    PyObject *behind; /* the capsule of another sink for the same rows, or NULL */
} Held;

static void release(Held *held)
{
    PyBuffer_Release(&held->across);
    PyBuffer_Release(&held->down);
    PyBuffer_Release(&held->to);
    Py_XDECREF(held->behind);
    free(held);
}

static void end_capsule(PyObject *capsule)
{
    end_rows(PyCapsule_GetPointer(capsule, ROW_SINK));
    release(PyCapsule_GetContext(capsule));
}

static PyObject *begin_capsule(Held *held, int height, int width, int level)
{
    const Py_ssize_t channels = channels_of(&held->to);
    RowSink *behind = held->behind ? PyCapsule_GetPointer(held->behind, ROW_SINK) : NULL;
    if (held->behind && !behind)
        return NULL;
    Table across, down;
    const Table *found;
    if (height < 1 || width < 1 || level < ANY || level > (int)best_level() || !is_image(&held->to) ||
        !is_contiguous(&held->to) || !read_axis(&held->across, width, held->to.shape[1], channels, level, &across, &found) ||
        !read_axis(&held->down, height, held->to.shape[0], 0, ANY, &down, &found) ||
        (behind && (behind->height != height || behind->row_bytes != width * channels))) {
        PyErr_SetString(PyExc_ValueError, "the tables or the sink are those of other sizes, or there is no such level");
        return NULL;
    }
    RowSink *sink = begin_rows(height, width, (int32_t)channels, &across, &down, (Level)level, held->to.buf,
                               behind);
    if (!sink)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(sink, ROW_SINK, NULL);
    if (!capsule || PyCapsule_SetContext(capsule, held) || PyCapsule_SetDestructor(capsule, end_capsule)) {
        Py_XDECREF(capsule);
        end_rows(sink);
        return NULL;
    }
    return capsule;
}

static PyObject *row_sink(PyObject *self, PyObject *arguments)
{
    (void)self;
    int height, width, level;
    PyObject *out, *behind = Py_None, *capsule = NULL;
    Held *held = calloc(1, sizeof *held);
    if (!held)
        return PyErr_NoMemory();
    if (PyArg_ParseTuple(arguments, "iiOy*y*i|O", &height, &width, &out, &held->across, &held->down, &level, &behind) &&
        !PyObject_GetBuffer(out, &held->to, PyBUF_STRIDES | PyBUF_WRITABLE)) {
        held->behind = behind == Py_None ? NULL : Py_NewRef(behind);
        capsule = begin_capsule(held, height, width, level);
    }
    if (!capsule)
        release(held);
    return capsule;
}

static PyObject *level(PyObject *self, PyObject *nothing)
{
    (void)self, (void)nothing;
    return PyLong_FromLong((long)level_in_use());
}

static PyMethodDef methods[] = {
    {"table", table, METH_VARARGS, NULL},
    {"resize", resize, METH_VARARGS, NULL},
    {"row_sink", row_sink, METH_VARARGS, NULL},
    {"limit", limit, METH_O, NULL},
    {"level", level, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

MODULE(_pillow_resize)
