/* Resizes RGB images as OpenCV's linear interpolation and torch's antialiased one do, bit for bit, and faster.

   Both resize each row, and then blend the rows so made, with weights in fixed point. tables.py makes the tables of both
   axes, which depend on sizes alone. What they say is trusted, since they never come from outside; that they are
   those of an image of this size is not. It takes AVX2: call is_supported() first. What lies in memory in another way it leaves to
   the libraries: resize() returns False. */

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* free-threaded Python has no limited API */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum {
    RGB = 3,
    MOST_PAIRS = 4, /* of pixels or rows that one is blended of */
    RING = 16,      /* rows that are kept: those of a row of the result, and one ahead */
    BLOCK = 32      /* values that are stored at a time */
};

typedef __m256i V;

INLINE V load(const void *at) { return _mm256_loadu_si256((const V *)at); }
INLINE void store(void *at, V x) { _mm256_storeu_si256((V *)at, x); }
INLINE V load_halves(const uint8_t *first, const uint8_t *second)
{
    V x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)second), 1);
}

/* ---- the tables ---- */

/* What each begins with. */
typedef struct {
    int32_t inputs, outputs; /* pixels */
    int32_t pairs;           /* of pixels that each is blended of */
    int32_t shift, half;     /* half is added to what they sum up to, which then is shifted to the right */
    int32_t reach;           /* of a row, how many bytes may be read */
} Head;

/* How the values of a row are blended: in groups, eight of linear interpolation, four of antialiased, for each of which
   16 bytes of the row are enough. Groups lie in the order in which packing their values gives those of a block. */
typedef struct {
    const Head *head;
    int64_t groups;
    const int32_t *places;      /* of each group, the byte of the row where it begins */
    const uint8_t (*picks)[16]; /* of each group, where from there the pixels of its values lie */
    const uint8_t (*weights)[16];
} Across;

/* How rows are. */
typedef struct {
    const Head *head;
    const int32_t *firsts;  /* of each row, the first of those that it is blended of; -1 is row 0 once more */
    const int32_t *weights; /* of each row, of each pair: two of 16 bits */
} Down;

/* ---- linear interpolation, as OpenCV does it ---- */

/* Weights have 11 bits, and four bits of the sum go. Of both weights (2048 - w) and w the lower four bits are taken
   apart: (2048 - w) * a + w * b = 16 * ((128 - c) * a + c * b) + f * (b - a), where w = 16 * c + f. */
INLINE void across_linear(const uint8_t *row, const Across *across, int16_t *to)
{
    const uint8_t(*coarse)[16] = across->weights, (*fine)[16] = coarse + across->groups;
    for (int64_t group = 0; group < across->groups; group += 2, to += 16) {
        V pixels = load_halves(row + across->places[group], row + across->places[group + 1]);
        pixels = _mm256_shuffle_epi8(pixels, load(across->picks[group]));
        V sum = _mm256_srai_epi16(_mm256_maddubs_epi16(pixels, load(fine[group])), 4);
        store(to, _mm256_add_epi16(sum, _mm256_maddubs_epi16(pixels, load(coarse[group]))));
    }
}

/* 16 values of two rows, each of which is multiplied and cut off by itself. */
INLINE V blend_linear(const int16_t *first, const int16_t *second, V by_first, V by_second)
{
    V a = _mm256_mulhi_epi16(load(first), by_first), b = _mm256_mulhi_epi16(load(second), by_second);
    return _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(2)), 2);
}

/* ---- antialiased interpolation, as torch does it ---- */

/* Eight sums of two rows: of the values of two groups. */
INLINE void sum_up(const uint8_t *const row[2], const Across *across, int64_t group, int32_t pairs, V half, V sum[2])
{
    const int64_t first = across->places[group], second = across->places[group + 1];
    const V picks = load(across->picks[group]);
    sum[0] = sum[1] = half;
    for (int32_t pair = 0; pair < pairs; pair++) {
        const V weights = load(across->weights[pair * across->groups + group]);
        const int64_t at = 2 * RGB * pair;
        for (int i = 0; i < 2; i++) {
            V pixels = _mm256_shuffle_epi8(load_halves(row[i] + first + at, row[i] + second + at), picks);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pixels, weights));
        }
    }
}

/* Two rows, for which places, picks and weights are read once. */
INLINE void across_antialiased(const uint8_t *const row[2], const Across *across, int32_t pairs, int16_t *const to[2])
{
    const V half = _mm256_set1_epi32(across->head->half);
    const __m128i shift = _mm_cvtsi32_si128(across->head->shift);
    for (int64_t group = 0; group < across->groups; group += 4) {
        V low[2], high[2];
        sum_up(row, across, group, pairs, half, low);
        sum_up(row, across, group + 2, pairs, half, high);
        for (int i = 0; i < 2; i++)
            store(to[i] + 4 * group, _mm256_packs_epi32(_mm256_sra_epi32(low[i], shift), _mm256_sra_epi32(high[i], shift)));
    }
}

/* 16 values of one sum over all rows. */
INLINE V blend_antialiased(const int16_t *const *rows, int64_t at, const int32_t *weights, int32_t pairs, V half,
                           __m128i shift)
{
    V low = half, high = half;
    for (int32_t pair = 0; pair < pairs; pair++) {
        V a = load(rows[2 * pair] + at), b = load(rows[2 * pair + 1] + at), by = _mm256_set1_epi32(weights[pair]);
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), by));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), by));
    }
    return _mm256_packs_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
}

/* ---- both ---- */

/* Two rows of the image. */
INLINE void resize_rows(const uint8_t *const row[2], const Across *across, bool linear, int16_t *const to[2])
{
    const int32_t pairs = across->head->pairs;
    if (linear)
        for (int i = 0; i < 2; i++)
            across_linear(row[i], across, to[i]);
    else if (pairs == 1) /* the compiler unrolls these two */
        across_antialiased(row, across, 1, to);
    else if (pairs == 2)
        across_antialiased(row, across, 2, to);
    else
        across_antialiased(row, across, pairs, to);
}

/* A row of the result, of such rows. */
INLINE void blend_by(const int16_t *const *rows, const Head *down, const int32_t *weights, bool linear, int32_t pairs,
                     uint8_t *to, int64_t values)
{
    const V half = _mm256_set1_epi32(down->half);
    const __m128i shift = _mm_cvtsi32_si128(down->shift);
    const V by_first = _mm256_set1_epi16((int16_t)weights[0]), by_second = _mm256_set1_epi16((int16_t)(weights[0] >> 16));
    for (int64_t at = 0; at < values; at += BLOCK) {
        V part[2];
        for (int i = 0; i < 2; i++)
            part[i] = linear ? blend_linear(rows[0] + at + 16 * i, rows[1] + at + 16 * i, by_first, by_second)
                             : blend_antialiased(rows, at + 16 * i, weights, pairs, half, shift);
        V block = _mm256_packus_epi16(part[0], part[1]);
        if (values - at >= BLOCK)
            store(to + at, block);
        else {
            uint8_t bytes[BLOCK];
            store(bytes, block);
            memcpy(to + at, bytes, (size_t)(values - at));
        }
    }
}

INLINE void blend(const int16_t *const *rows, const Head *down, const int32_t *weights, bool linear, uint8_t *to,
                  int64_t values)
{
    if (linear)
        blend_by(rows, down, weights, true, 1, to, values);
    else if (down->pairs == 1)
        blend_by(rows, down, weights, false, 1, to, values);
    else if (down->pairs == 2)
        blend_by(rows, down, weights, false, 2, to, values);
    else
        blend_by(rows, down, weights, false, down->pairs, to, values);
}

/* Behind its last row there may be no memory. */
typedef struct {
    const uint8_t *pixels;
    int64_t stride, height, width; /* bytes, pixels */
} Image;

static int64_t clamp(int64_t x, int64_t last) { return x < 0 ? 0 : x > last ? last : x; }

/* Where a row of the image is kept. */
static int16_t *place_in(int16_t *kept, int64_t row, int64_t values) { return kept + (int64_t)((uint64_t)row % RING) * values; }

/* How many bytes resize_image needs. */
static int64_t room(const Image *image, const Across *across)
{
    return RING * across->groups * (BLOCK / 2) + 2 * (RGB * image->width + across->head->reach);
}

TARGET static void resize_image(const Image *image, const Across *across, const Down *down, bool linear, void *memory,
                                uint8_t *out)
{
    const int64_t out_values = RGB * (int64_t)across->head->outputs, row_bytes = RGB * image->width;
    const int64_t kept_values = (out_values + BLOCK - 1) / BLOCK * BLOCK;
    const int64_t last = image->height - 1, taps = 2 * (int64_t)down->head->pairs;
    const uint8_t *end = image->pixels + last * image->stride + row_bytes;
    int16_t *kept = memory;
    uint8_t *copies = (uint8_t *)(kept + RING * kept_values);
    int64_t done = 0;
    for (int64_t y = 0; y < down->head->outputs; y++, out += out_values) {
        const int64_t first = down->firsts[y];
        for (done = done < first ? first : done; done <= clamp(first + taps - 1, last); done += 2) {
            const uint8_t *row[2];
            int16_t *to[2];
            for (int i = 0; i < 2; i++) {
                row[i] = image->pixels + clamp(done + i, last) * image->stride;
                if (end - row[i] < across->head->reach)
                    row[i] = memcpy(copies + i * (row_bytes + across->head->reach), row[i], (size_t)row_bytes);
                to[i] = place_in(kept, done + i, kept_values);
            }
            resize_rows(row, across, linear, to);
        }
        const int16_t *rows[2 * MOST_PAIRS];
        for (int64_t tap = 0; tap < taps; tap++)
            rows[tap] = place_in(kept, clamp(first + tap, last), kept_values);
        blend(rows, down->head, down->weights + y * (taps / 2), linear, out, out_values);
    }
}

/* ---- from Python ---- */

/* A table, if it is that of these sizes. */
static const Head *head_of(const Py_buffer *table, int64_t inputs, int64_t outputs, bool linear)
{
    const Head *head = table->buf;
    bool fits = table->len >= (Py_ssize_t)sizeof(Head) && head->inputs == inputs && head->outputs == outputs &&
                head->pairs >= 1 && head->pairs <= (linear ? 1 : MOST_PAIRS);
    return fits ? head : NULL;
}

static bool read_across(const Py_buffer *table, int64_t inputs, int64_t outputs, bool linear, Across *across)
{
    const Head *head = across->head = head_of(table, inputs, outputs, linear);
    if (!head)
        return false;
    across->groups = (RGB * outputs + BLOCK - 1) / BLOCK * (linear ? 4 : 8);
    across->places = (const int32_t *)(head + 1);
    across->picks = (const uint8_t(*)[16])(across->places + across->groups);
    across->weights = across->picks + across->groups;
    const void *end = across->weights + (linear ? 2 : head->pairs) * across->groups;
    return table->len == (const uint8_t *)end - (const uint8_t *)head;
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
                              const Py_buffer *down_table, bool linear)
{
    Across across;
    Down down;
    if (!is_rgb(pixels) || !is_rgb(out) || out->strides[0] != RGB * out->shape[1])
        return Py_NewRef(Py_False);
    if (!read_across(across_table, pixels->shape[1], out->shape[1], linear, &across) ||
        !read_down(down_table, pixels->shape[0], out->shape[0], linear, &down)) {
        PyErr_SetString(PyExc_ValueError, "the tables are those of other sizes");
        return NULL;
    }
    Image image = {pixels->buf, pixels->strides[0], pixels->shape[0], pixels->shape[1]};
    void *memory = malloc((size_t)room(&image, &across));
    if (!memory)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    resize_image(&image, &across, &down, linear, memory, out->buf);
    Py_END_ALLOW_THREADS
    free(memory);
    return Py_NewRef(Py_True);
}

static PyObject *resize(PyObject *self, PyObject *arguments)
{
    (void)self;
    PyObject *pixels, *out, *result = NULL;
    Py_buffer across, down, from, to;
    int linear;
    if (!PyArg_ParseTuple(arguments, "OOy*y*p", &pixels, &out, &across, &down, &linear))
        return NULL;
    if (!PyObject_GetBuffer(pixels, &from, PyBUF_STRIDES)) {
        if (!PyObject_GetBuffer(out, &to, PyBUF_STRIDES | PyBUF_WRITABLE)) {
            result = resize_views(&from, &to, &across, &down, linear);
            PyBuffer_Release(&to);
        }
        PyBuffer_Release(&from);
    }
    PyBuffer_Release(&across);
    PyBuffer_Release(&down);
    return result;
}

static PyObject *is_supported(PyObject *self, PyObject *nothing)
{
    (void)self, (void)nothing;
    return PyBool_FromLong(__builtin_cpu_supports("avx2"));
}

#else

static PyObject *resize(PyObject *self, PyObject *arguments)
{
    (void)self, (void)arguments;
    PyErr_SetString(PyExc_NotImplementedError, "it takes AVX2");
    return NULL;
}

static PyObject *is_supported(PyObject *self, PyObject *nothing)
{
    (void)self, (void)nothing;
    return Py_NewRef(Py_False);
}

#endif

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS, NULL},
    {"is_supported", is_supported, METH_NOARGS, NULL},
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
