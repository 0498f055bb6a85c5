/* Resizes RGB images as OpenCV's linear interpolation and torch's antialiased one do, bit for bit, and faster.

   tables.py makes the tables of both axes, which depend on sizes alone, and on the bytes of a window (resize/resize.h).
   What they say is trusted, since they never come from outside; that they are those of an image of this size is not.
   What lies in memory in another way is left to the libraries: resize() returns False.

       resize/resize.h             the tables
       resize/rows.h               rows and their blends
       resize/avx2.c avx512.c      the latter, compiled for either kind of processor; there are no others */

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* free-threaded Python has no limited API */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __x86_64__

#include "resize/resize.h"

enum {
    NARROW = 16, /* the windows of each Resizer, in bytes */
    WIDE = 64
};

/* The widest window that this processor has a Resizer for; 0 if there is none. */
static int widest(void)
{
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw"))
        return WIDE;
    return __builtin_cpu_supports("avx2") ? NARROW : 0;
}

/* A table, if it is that of these sizes. */
static const Head *head_of(const Py_buffer *table, int64_t inputs, int64_t outputs, bool linear)
{
    const Head *head = table->buf;
    bool fits = table->len >= (Py_ssize_t)sizeof(Head) && head->inputs == inputs && head->outputs == outputs &&
                head->pairs >= 1 && head->pairs <= (linear ? 1 : MOST_PAIRS);
    return fits ? head : NULL;
}

static bool read_across(const Py_buffer *table, int64_t inputs, int64_t outputs, bool linear, int window, Across *across)
{
    const Head *head = across->head = head_of(table, inputs, outputs, linear);
    if (!head)
        return false;
    const int64_t vector = window == WIDE ? 64 : 32; /* bytes */
    across->values = (RGB * outputs + vector - 1) / vector * vector;
    const int64_t bytes = across->values * (linear ? 2 : 4);
    across->groups = bytes / window;
    across->places = (const int32_t *)(head + 1);
    across->picks = (const uint8_t *)(across->places + across->groups);
    across->weights = across->picks + bytes;
    return table->len == across->weights + (linear ? 2 : head->pairs) * bytes - (const uint8_t *)head;
}

static bool read_down(const Py_buffer *table, int64_t inputs, int64_t outputs, bool linear, Down *down)
{
    const Head *head = down->head = head_of(table, inputs, outputs, linear);
    if (!head)
        return false;
    down->firsts = (const int32_t *)(head + 1);
    down->weights = down->firsts + outputs;
    return table->len == (const uint8_t *)(down->weights + head->pairs * outputs) - (const uint8_t *)head;
}

static bool is_rgb(const Py_buffer *view)
{
    return view->ndim == 3 && view->itemsize == 1 && view->shape[0] > 0 && view->shape[1] > 0 && view->shape[2] == RGB &&
           view->strides[2] == 1 && view->strides[1] == RGB && view->strides[0] >= RGB * view->shape[1];
}

static PyObject *resize_views(const Py_buffer *pixels, const Py_buffer *out, const Py_buffer *across_table,
                              const Py_buffer *down_table, bool linear, int window)
{
    Across across;
    Down down;
    if (!is_rgb(pixels) || !is_rgb(out) || out->strides[0] != RGB * out->shape[1])
        return Py_NewRef(Py_False);
    if (!read_across(across_table, pixels->shape[1], out->shape[1], linear, window, &across) ||
        !read_down(down_table, pixels->shape[0], out->shape[0], linear, &down)) {
        PyErr_SetString(PyExc_ValueError, "the tables are those of other sizes");
        return NULL;
    }
    Image image = {pixels->buf, pixels->strides[0], pixels->shape[0], pixels->shape[1]};
    void *memory = malloc((size_t)room(&image, &across));
    if (!memory)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    (window == WIDE ? resize_avx512 : resize_avx2)(&image, &across, &down, linear, memory, out->buf);
    Py_END_ALLOW_THREADS
    free(memory);
    return Py_NewRef(Py_True);
}

static PyObject *resize(PyObject *self, PyObject *arguments)
{
    (void)self;
    PyObject *pixels, *out, *result = NULL;
    Py_buffer across, down, from, to;
    int linear, window;
    if (!PyArg_ParseTuple(arguments, "OOy*y*pi", &pixels, &out, &across, &down, &linear, &window))
        return NULL;
    if ((window != NARROW && window != WIDE) || window > widest())
        PyErr_SetString(PyExc_ValueError, "this processor has no such window");
    else if (!PyObject_GetBuffer(pixels, &from, PyBUF_STRIDES)) {
        if (!PyObject_GetBuffer(out, &to, PyBUF_STRIDES | PyBUF_WRITABLE)) {
            result = resize_views(&from, &to, &across, &down, linear, window);
            PyBuffer_Release(&to);
        }
        PyBuffer_Release(&from);
    }
    PyBuffer_Release(&across);
    PyBuffer_Release(&down);
    return result;
}

static PyObject *window_bytes(PyObject *self, PyObject *nothing)
{
    (void)self, (void)nothing;
    return PyLong_FromLong(widest());
}

#else

static PyObject *resize(PyObject *self, PyObject *arguments)
{
    (void)self, (void)arguments;
    PyErr_SetString(PyExc_NotImplementedError, "it takes AVX2");
    return NULL;
}

static PyObject *window_bytes(PyObject *self, PyObject *nothing)
{
    (void)self, (void)nothing;
    return PyLong_FromLong(0);
}

#endif

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS, NULL},
    {"window_bytes", window_bytes, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_resample", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__resample(void) { return PyModuleDef_Init(&module); }
