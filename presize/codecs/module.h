/* Common parts of the extension modules: Python's limited API, and the definition of a module. */

#pragma once

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* free-threaded Python has no limited API */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdbool.h>

#include "level.h"

static Level most = AVX512; /* set by limit() */

/* Return the level to use: the best one of this processor, up to the limit. */
static Level level_in_use(void)
{
    const Level best = best_level();
    return best < most ? best : most;
}

/* Limit the level, 0 for ANY to 2 for AVX512, and return the one in use. */
static PyObject *limit(PyObject *self, PyObject *wanted)
{
    (void)self;
    const long level = PyLong_AsLong(wanted);
    if (level == -1 && PyErr_Occurred())
        return NULL;
    if (level < ANY || level >= LEVELS) {
        PyErr_SetString(PyExc_ValueError, "there is no such level");
        return NULL;
    }
    most = (Level)level;
    return PyLong_FromLong((long)level_in_use());
}

#ifdef Py_GIL_DISABLED
#define SLOTS {Py_mod_gil, Py_MOD_GIL_NOT_USED}, {0, NULL}
#else
#define SLOTS {0, NULL}
#endif

/* Define the module `name` with `methods`. */
#define MODULE(name)                                                                                                   \
    static PyModuleDef_Slot slots[] = {SLOTS};                                                                         \
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, #name, NULL, 0, methods, slots, NULL, NULL, NULL};             \
    PyMODINIT_FUNC PyInit_##name(void) { return PyModuleDef_Init(&module); }
