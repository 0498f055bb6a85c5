/* Common parts of the extension modules: Python's limited API, and the definition of a module. */

#pragma once

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* free-threaded Python has no limited API */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdbool.h>

static bool is_held; /* limited to instructions that every processor has */

/* Implement use_avx2(). Return whether AVX2 is now used; `can`: whether the processor supports it. */
static PyObject *hold(PyObject *wanted, bool can)
{
    const int is_wanted = PyObject_IsTrue(wanted);
    if (is_wanted < 0)
        return NULL;
    is_held = !is_wanted;
    return PyBool_FromLong(is_wanted && can);
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
