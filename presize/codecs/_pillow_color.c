/* Pillow's arithmetic on colours, byte for byte: ImageEnhance, GaussianBlur, HSV and affine transforms of 8-bit images,
   (height, width, channels) or (height, width). Also converts pixels to planes of floats, one for each channel.

   Arrays are C-contiguous; `out` never overlaps the others. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

#define INLINE static inline __attribute__((always_inline))

#ifdef __x86_64__
#define FOR_AVX2 __attribute__((target("avx2")))
#else
#define FOR_AVX2
#endif

/* Define `name`, which calls `name_loop`, compiled for the processor. */
#define FOR_PROCESSOR(name, parameters, arguments)                                                                     \
    FOR_AVX2 static void name##_avx2 parameters { name##_loop arguments; }                                             \
    static void name##_any parameters { name##_loop arguments; }                                                       \
    static void name parameters                                                                                        \
    {                                                                                                                  \
        if (level_in_use() >= AVX2)                                                                                    \
            name##_avx2 arguments;                                                                                     \
        else                                                                                                           \
            name##_any arguments;                                                                                      \
    }

typedef uint8_t u8;

/* Image.blend */
INLINE void blend_bytes_loop(const u8 *from, const u8 *to, u8 *out, Py_ssize_t count, float alpha)
{
    if (alpha >= 0 && alpha <= 1)
        for (Py_ssize_t i = 0; i < count; i++)
            out[i] = (u8)(int)((float)from[i] + alpha * (float)(to[i] - from[i]));
    else
        for (Py_ssize_t i = 0; i < count; i++) {
            float value = (float)from[i] + alpha * (float)(to[i] - from[i]);
            value = value < 0 ? 0 : value;
            out[i] = (u8)(int)(value > 255 ? 255 : value);
        }
}
FOR_PROCESSOR(blend_bytes,
              (const u8 *restrict from, const u8 *restrict to, u8 *restrict out, Py_ssize_t count, float alpha),
              (from, to, out, count, alpha))

/* convert("L") */
INLINE void luma_loop(const u8 *rgb, u8 *out, Py_ssize_t pixels)
{
    for (Py_ssize_t i = 0; i < pixels; i++)
        out[i] = (u8)((rgb[3 * i] * 19595 + rgb[3 * i + 1] * 38470 + rgb[3 * i + 2] * 7471 + 0x8000) >> 16);
}
FOR_PROCESSOR(luma, (const u8 *restrict rgb, u8 *restrict out, Py_ssize_t pixels), (rgb, out, pixels))

/* convert("L").convert("RGB") */
INLINE void gray_rgb_loop(const u8 *rgb, u8 *out, Py_ssize_t pixels)
{
    for (Py_ssize_t i = 0; i < pixels; i++)
        out[3 * i] = out[3 * i + 1] = out[3 * i + 2] =
            (u8)((rgb[3 * i] * 19595 + rgb[3 * i + 1] * 38470 + rgb[3 * i + 2] * 7471 + 0x8000) >> 16);
}
FOR_PROCESSOR(gray_rgb, (const u8 *restrict rgb, u8 *restrict out, Py_ssize_t pixels), (rgb, out, pixels))

/* ImageFilter.SMOOTH of one row: nine float products, summed in Pillow's order. */
INLINE void smooth_row_loop(const u8 *above, const u8 *row, const u8 *below, u8 *out, Py_ssize_t count, Py_ssize_t step)
{
    const float one = 1.0f / 13, five = 5.0f / 13;
    for (Py_ssize_t i = 0; i < count; i++) {
        float sum = 0.5f;
        sum += (float)below[i - step] * one + (float)below[i] * one + (float)below[i + step] * one;
        sum += (float)row[i - step] * one + (float)row[i] * five + (float)row[i + step] * one;
        sum += (float)above[i - step] * one + (float)above[i] * one + (float)above[i + step] * one;
        out[i] = (u8)(int)(sum > 255 ? 255 : sum);
    }
}
FOR_PROCESSOR(smooth_row,
              (const u8 *restrict above, const u8 *restrict row, const u8 *restrict below, u8 *restrict out,
               Py_ssize_t count, Py_ssize_t step),
              (above, row, below, out, count, step))

/* One row of a vertical box blur. `sums` has the sums of 2 * radius + 1 rows. */
INLINE void box_row_loop(uint32_t *sums, const u8 *gone, const u8 *come, const u8 *next, u8 *out, Py_ssize_t count,
                          uint32_t inner, uint32_t outer)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        sums[i] += (uint32_t)come[i] - gone[i];
        out[i] = (u8)((sums[i] * inner + ((uint32_t)gone[i] + next[i]) * outer + (1u << 23)) >> 24);
    }
}
FOR_PROCESSOR(box_row,
              (uint32_t *restrict sums, const u8 *restrict gone, const u8 *restrict come, const u8 *restrict next,
               u8 *restrict out, Py_ssize_t count, uint32_t inner, uint32_t outer),
              (sums, gone, come, next, out, count, inner, outer))

static void box_columns(const u8 *in, u8 *out, uint32_t *sums, Py_ssize_t rows, Py_ssize_t width, float radius)
{
    const Py_ssize_t whole = (Py_ssize_t)radius, last = rows - 1;
    const uint32_t inner = (uint32_t)((float)(1 << 24) / (radius * 2 + 1));
    const uint32_t outer = ((1 << 24) - (uint32_t)(whole * 2 + 1) * inner) / 2;
    memset(sums, 0, (size_t)width * sizeof *sums);
    for (Py_ssize_t y = -whole - 1; y < whole; y++) { /* the sums of the row before the first */
        const u8 *row = in + (y < 0 ? 0 : y > last ? last : y) * width;
        for (Py_ssize_t i = 0; i < width; i++)
            sums[i] += row[i];
    }
    for (Py_ssize_t y = 0; y < rows; y++) {
        const Py_ssize_t gone = y - whole - 1, come = y + whole;
        box_row(sums, in + (gone < 0 ? 0 : gone) * width, in + (come > last ? last : come) * width,
                in + (come + 1 > last ? last : come + 1) * width, out + y * width, width, inner, outer);
    }
}

/* Shift the hue by `shift`/256 of the circle. The tables have Pillow's results: hues[3][256][256], for red, green or
   blue as the largest, by the differences of the other two from it; saturations[256][256], by the largest and the
   difference of the smallest from it; smallest[256][256], by saturation and value. */
static void move_hue(const u8 *in, u8 *out, Py_ssize_t pixels, int shift, const u8 *hues, const u8 *saturations,
                     const u8 *smallest)
{
    static const u8 places[6][3] = {{0, 1, 2}, {1, 0, 2}, {1, 2, 0}, {2, 1, 0}, {2, 0, 1}, {0, 2, 1}};
    /* indices of the largest, the middle and the smallest channel */
    float parts[256];
    u8 sectors[256];
    for (int hue = 0; hue < 256; hue++) {
        const double sixths = (double)(float)hue * 6.0 / 255.0;
        const int sector = (int)floor(sixths);
        parts[hue] = (float)(sixths - (double)(float)sector);
        sectors[hue] = (u8)(sector % 6);
    }
    for (const u8 *end = in + 3 * pixels; in < end; in += 3, out += 3) {
        const int r = in[0], g = in[1], b = in[2];
        const int more = g > r ? g : r, most = b > more ? b : more, less = g < r ? g : r, least = b < less ? b : less;
        const int place = r == most ? (most - g) << 8 | (most - b)
                          : g == most ? 1 << 16 | (most - r) << 8 | (most - b)
                                      : 2 << 16 | (most - r) << 8 | (most - g);
        const u8 hue = (u8)(hues[place] + shift), saturation = saturations[most << 8 | (most - least)];
        const int sector = sectors[hue];
        const float share = (float)((double)(float)saturation / 255.0), part = parts[hue];
        const double lost = sector % 2 ? (double)(share * part) : (double)share * (1.0 - (double)part);
        out[places[sector][0]] = (u8)most;
        out[places[sector][1]] = (u8)(int)((double)most * (1.0 - lost) + 0.5);
        out[places[sector][2]] = smallest[saturation << 8 | most];
    }
}

INLINE void copy_pixel(u8 *out, const u8 *in, Py_ssize_t channels)
{
    out[0] = in[0];
    if (channels == 3)
        out[1] = in[1], out[2] = in[2];
}

static int32_t fixed(double value) { return (int32_t)floor(value * 65536.0 + 0.5); }

/* Image.transform by an affine matrix of moderate numbers, NEAREST. `out` already has the fill colour. */
static void move(const u8 *in, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t channels, u8 *out, Py_ssize_t out_rows,
                 Py_ssize_t out_columns, const double *a, Py_ssize_t *places)
{
    if (a[1] == 0 && a[3] == 0) { /* rows and columns are independent */
        double x = a[2] + a[0] * 0.5, y = a[5] + a[4] * 0.5;
        for (Py_ssize_t i = 0; i < out_columns; i++, x += a[0])
            places[i] = x < 0 || (Py_ssize_t)x >= columns ? -1 : (Py_ssize_t)x * channels;
        for (Py_ssize_t j = 0; j < out_rows; j++, y += a[4], out += out_columns * channels)
            if (y >= 0 && (Py_ssize_t)y < rows)
                for (Py_ssize_t i = 0; i < out_columns; i++)
                    if (places[i] >= 0)
                        copy_pixel(out + i * channels, in + (Py_ssize_t)y * columns * channels + places[i], channels);
        return;
    }
    int64_t left = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5), top = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
    const int64_t right_x = fixed(a[0]), right_y = fixed(a[3]), down_x = fixed(a[1]), down_y = fixed(a[4]);
    for (Py_ssize_t j = 0; j < out_rows; j++, left += down_x, top += down_y) {
        int64_t x = left, y = top;
        for (Py_ssize_t i = 0; i < out_columns; i++, x += right_x, y += right_y, out += channels)
            if ((x >> 16) >= 0 && (x >> 16) < columns && (y >> 16) >= 0 && (y >> 16) < rows)
                copy_pixel(out, in + ((y >> 16) * columns + (x >> 16)) * channels, channels);
    }
}

/* ---- Python interface: functions of pixels, an array for the result, and numbers that the caller has checked ---- */

enum {
    IN,
    OUT,
    MORE
};

/* Release the buffers. Return None, or set an exception. */
static PyObject *finish(Py_buffer *views, int count, bool fits, bool has_memory)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "the arrays are not of one size");
    else if (!has_memory)
        PyErr_NoMemory();
    return fits && has_memory ? Py_NewRef(Py_None) : NULL;
}

static PyObject *gray(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(arguments, "y*w*", &views[IN], &views[OUT]))
        return NULL;
    const u8 *in = views[IN].buf;
    u8 *out = views[OUT].buf;
    const Py_ssize_t pixels = views[OUT].len;
    const bool fits = views[IN].len == 3 * pixels;
    Py_BEGIN_ALLOW_THREADS
    if (fits)
        luma(in, out, pixels);
    Py_END_ALLOW_THREADS
    return finish(views, 2, fits, true);
}

static PyObject *saturate(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[2];
    float alpha;
    if (!PyArg_ParseTuple(arguments, "y*w*f", &views[IN], &views[OUT], &alpha))
        return NULL;
    const u8 *in = views[IN].buf;
    u8 *out = views[OUT].buf;
    const Py_ssize_t bytes = views[OUT].len;
    const bool fits = views[IN].len == bytes && bytes % 3 == 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; fits && at < bytes;) {
        u8 grays[3 * 512];
        const Py_ssize_t count = bytes - at < (Py_ssize_t)sizeof grays ? bytes - at : (Py_ssize_t)sizeof grays;
        gray_rgb(in + at, grays, count / 3);
        blend_bytes(grays, in + at, out + at, count, alpha);
        at += count;
    }
    Py_END_ALLOW_THREADS
    return finish(views, 2, fits, true);
}

/* Image.blend of a uniformly grey image with this one. */
static PyObject *blend(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[2];
    int value;
    float alpha;
    if (!PyArg_ParseTuple(arguments, "y*w*if", &views[IN], &views[OUT], &value, &alpha))
        return NULL;
    const Py_ssize_t bytes = views[OUT].len;
    const bool fits = views[IN].len == bytes && value >= 0 && value <= 255;
    Py_BEGIN_ALLOW_THREADS
    u8 from[1024];
    memset(from, value, sizeof from);
    for (Py_ssize_t at = 0; fits && at < bytes; at += (Py_ssize_t)sizeof from) {
        const Py_ssize_t left = bytes - at, most = (Py_ssize_t)sizeof from;
        blend_bytes(from, (const u8 *)views[IN].buf + at, (u8 *)views[OUT].buf + at, left < most ? left : most, alpha);
    }
    Py_END_ALLOW_THREADS
    return finish(views, 2, fits, true);
}

static PyObject *sharpen(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[2];
    Py_ssize_t rows, columns, channels;
    float alpha;
    if (!PyArg_ParseTuple(arguments, "y*w*nnnf", &views[IN], &views[OUT], &rows, &columns, &channels, &alpha))
        return NULL;
    const Py_ssize_t width = columns * channels;
    const bool fits = (channels == 1 || channels == 3) && rows > 2 && columns > 2 && views[IN].len == rows * width &&
                      views[OUT].len == rows * width;
    u8 *smooth = fits ? malloc((size_t)width) : NULL;
    if (smooth) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t y = 0; y < rows; y++) {
            const u8 *row = (const u8 *)views[IN].buf + y * width;
            memcpy(smooth, row, (size_t)width);
            if (y > 0 && y < rows - 1)
                smooth_row(row - width + channels, row + channels, row + width + channels, smooth + channels,
                           width - 2 * channels, channels);
            blend_bytes(smooth, row, (u8 *)views[OUT].buf + y * width, width, alpha);
        }
        Py_END_ALLOW_THREADS
    }
    free(smooth);
    return finish(views, 2, fits, smooth != NULL);
}

/* Three vertical box blurs. */
static PyObject *blur_columns(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[2];
    Py_ssize_t rows;
    float radius;
    if (!PyArg_ParseTuple(arguments, "y*w*nf", &views[IN], &views[OUT], &rows, &radius))
        return NULL;
    const Py_ssize_t bytes = views[IN].len;
    const bool fits = rows > 0 && bytes % rows == 0 && views[OUT].len == bytes && radius >= 0 && radius < 1024;
    const size_t width = fits ? (size_t)(bytes / rows) : 0;
    u8 *other = fits ? malloc(width * sizeof(uint32_t) + (size_t)bytes) : NULL;
    if (other) {
        uint32_t *sums = (uint32_t *)(void *)other;
        u8 *between = other + width * sizeof *sums;
        Py_BEGIN_ALLOW_THREADS
        box_columns(views[IN].buf, views[OUT].buf, sums, rows, (Py_ssize_t)width, radius);
        box_columns(views[OUT].buf, between, sums, rows, (Py_ssize_t)width, radius);
        box_columns(between, views[OUT].buf, sums, rows, (Py_ssize_t)width, radius);
        Py_END_ALLOW_THREADS
    }
    free(other);
    return finish(views, 2, fits, other != NULL);
}

static PyObject *hue(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[MORE + 3];
    int shift;
    if (!PyArg_ParseTuple(arguments, "y*w*iy*y*y*", &views[IN], &views[OUT], &shift, &views[MORE], &views[MORE + 1],
                          &views[MORE + 2]))
        return NULL;
    const bool fits = views[IN].len == views[OUT].len && views[IN].len % 3 == 0 && views[MORE].len == 3 << 16 &&
                      views[MORE + 1].len == 1 << 16 && views[MORE + 2].len == 1 << 16;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        move_hue(views[IN].buf, views[OUT].buf, views[IN].len / 3, shift, views[MORE].buf, views[MORE + 1].buf,
                 views[MORE + 2].buf);
        Py_END_ALLOW_THREADS
    }
    return finish(views, MORE + 3, fits, true);
}

static PyObject *affine(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[2];
    Py_ssize_t rows, columns, channels, out_rows, out_columns;
    double a[6];
    if (!PyArg_ParseTuple(arguments, "y*w*nnnnn(dddddd)", &views[IN], &views[OUT], &rows, &columns, &channels,
                          &out_rows, &out_columns, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5]))
        return NULL;
    bool fits = (channels == 1 || channels == 3) && rows > 0 && columns > 0 && out_rows > 0 && out_columns > 0 &&
                views[IN].len == rows * columns * channels && views[OUT].len == out_rows * out_columns * channels;
    for (int i = 0; i < 6; i++)
        fits = fits && fabs(a[i]) < 8192;
    Py_ssize_t *places = fits ? malloc((size_t)out_columns * sizeof *places) : NULL;
    if (places) {
        Py_BEGIN_ALLOW_THREADS
        move(views[IN].buf, rows, columns, channels, views[OUT].buf, out_rows, out_columns, a, places);
        Py_END_ALLOW_THREADS
    }
    free(places);
    return finish(views, 2, fits, places != NULL);
}

/* Convert to a plane of floats for each channel, with a table of 256 floats for each channel. */
static PyObject *planes(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer views[3];
    Py_ssize_t channels;
    if (!PyArg_ParseTuple(arguments, "y*w*y*n", &views[IN], &views[OUT], &views[MORE], &channels))
        return NULL;
    const Py_ssize_t bytes = views[IN].len;
    const bool fits = channels > 0 && bytes % channels == 0 && views[OUT].len == bytes * (Py_ssize_t)sizeof(float) &&
                      views[MORE].len == channels * 256 * (Py_ssize_t)sizeof(float);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t c = 0; fits && c < channels; c++) {
        const u8 *in = (const u8 *)views[IN].buf + c;
        const float *table = (const float *)views[MORE].buf + 256 * c;
        float *out = (float *)views[OUT].buf + c * (bytes / channels);
        for (Py_ssize_t i = 0; i < bytes / channels; i++)
            out[i] = table[in[i * channels]];
    }
    Py_END_ALLOW_THREADS
    return finish(views, 3, fits, true);
}

static PyMethodDef methods[] = {
    {"gray", gray, METH_VARARGS, NULL},
    {"saturate", saturate, METH_VARARGS, NULL},
    {"blend", blend, METH_VARARGS, NULL},
    {"sharpen", sharpen, METH_VARARGS, NULL},
    {"blur_columns", blur_columns, METH_VARARGS, NULL},
    {"hue", hue, METH_VARARGS, NULL},
    {"affine", affine, METH_VARARGS, NULL},
    {"planes", planes, METH_VARARGS, NULL},
    {"limit", limit, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

MODULE(_pillow_color)
