/* Resizes 8-bit images like Pillow, byte for byte.

       tables.c          the weights of one axis, in the layout that the kernels read
       passes.c          both passes over an image, with the kernels of the processor
       any.c             kernels in plain C
       avx2.c avx512.c   kernels.h, compiled for each kind of processor

   An axis is resized with weights of 22 bits and rounded to 8 bits. This code is independent of Python. */

#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../level.h"
#include "../row_sink.h"

enum {
    BITS = 22,               /* fractional bits of a weight; 1 << BITS is 1 */
    MOST_WEIGHT = 7 << 20,   /* limit on the sum of the absolute weights of a pixel: sums with pixels fit 32 bits */
    MOST_SIDE = (1 << 24) - 1, /* pixels; exact in float */
    MOST_CHANNELS = 4,
    LINE = 64 /* bytes of a cache line, and of the longest vector */
};

typedef enum { BOX, BILINEAR, HAMMING, BICUBIC, LANCZOS, FILTERS } Filter;

/* How vector kernels read a row. With LINEAR, CLOSE and WIDE, a window of bytes has the pixels for a group of result
   values: half as many values as bytes, or a quarter with WIDE. With LINEAR, each value lies between two pixels. With
   ONES, result pixels are computed one by one, because the pixels of a group lie too far apart. */
typedef enum { PLAIN, LINEAR, CLOSE, WIDE, ONES } Reading;

typedef struct {
    int32_t inputs, outputs; /* pixels */
    float begin, end;        /* the part of the (whole) inputs that becomes the (whole) outputs */
    Filter filter;
    int32_t channels; /* of a pixel; 0 for the vertical axis */
    bool mirrored;    /* the inputs are in memory from right to left */
    bool flipped;     /* the outputs are written from right to left */
    Level level;
    int32_t whole_inputs, whole_outputs;     /* of the whole axis, if inputs and outputs are parts; else 0 */
    int32_t skipped_inputs, skipped_outputs; /* before those parts */
} Axis;

/* Header at the beginning of a table's memory. */
typedef struct {
    int32_t inputs, outputs, channels, level;
    int32_t taps;    /* inputs that each output blends; first + taps <= inputs */
    int32_t reading; /* Reading */
    int32_t steps;   /* LINEAR, CLOSE, WIDE: pairs of taps; ONES: loads of 16 bytes */
    int32_t reach;   /* bytes of a row that kernels may read */
} Head;

/* Pointers into the memory of a table, in its order. */
typedef struct {
    const Head *head;
    const int32_t *firsts;  /* (outputs): the first tap of each output */
    const int32_t *weights; /* (outputs, taps) */
    /* For AVX2 and AVX512, with channels. A weight is (high << 16) + low; the high part has 8 bits. */
    const int32_t *places; /* byte offset in a row of each window, or of each output's first pixel */
    const int16_t *lows;
    const int8_t *highs;
    const uint8_t *picks; /* positions in a window of the pixels of its values */
} Table;

/* Sizes of a vector, and of the windows that it is read from. */
static inline int32_t vector_bytes(Level level) { return level == AVX512 ? 64 : 32; }
static inline int32_t window_bytes(Level level) { return level == AVX512 ? 64 : 16; }

/* Return whether a value with these weights lies between both pixels. */
static inline bool is_between(int32_t first, int32_t second)
{
    return first >= 0 && second >= 0 && first + second == 1 << BITS;
}

/* Return the size of a resized row with the bytes that whole vectors write past its end. */
static inline int64_t padded_bytes(int64_t bytes) { return (bytes + 2 * LINE - 1) / LINE * LINE; }

typedef struct {
    const uint8_t *pixels; /* the first row */
    int64_t stride;        /* bytes from row to row; may be negative */
    int64_t height, width; /* pixels */
    int32_t channels;
    bool has_alpha; /* the fourth channel is alpha: weight colours by it */
} Image;

/* Functions that resize two rows, or blend rows to one. */
typedef struct {
    /* Writes padded_bytes() of each `to`; reads `reach` bytes of each row. */
    void (*across)(const Table *table, const uint8_t *const row[2], uint8_t *const to[2]);
    /* Writes `bytes` bytes. If `taps` is odd, `rows` has one more row, of weight 0. `room` has 3 * (taps + 1) bytes. */
    void (*down)(const uint8_t *const *rows, const int32_t *weights, int64_t taps, int64_t bytes, uint8_t *to,
                 void *room);
    /* RGBA to Pillow's RGBa, and back. */
    void (*premultiply)(const uint8_t *from, int64_t bytes, uint8_t *to);
    void (*unpremultiply)(uint8_t *pixels, int64_t bytes);
} Kernels;

#define HIDDEN __attribute__((visibility("hidden")))

extern HIDDEN const Kernels any_kernels;
#ifdef __x86_64__
extern HIDDEN const Kernels avx2_kernels, avx512_kernels;
#endif

/* Fill `table` from `memory`, written by make_table. Return false if the head is not for these sizes. */
HIDDEN bool read_table(const void *memory, int64_t bytes, int32_t inputs, int32_t outputs, int32_t channels, Level level,
                       Table *table);

/* Make a table of `bytes` bytes, to be freed with free(). Return NULL if out of memory, or with `is_for_us` false if
   Pillow or this code does not support the sizes or the part of the inputs. */
HIDDEN void *make_table(const Axis *axis, int64_t *bytes, bool *is_for_us);

/* Resize `image` into `out`, whose rows are contiguous: horizontally first, or vertically with `vertical_first`. A pass
   without a table is omitted; at least one table is required. Alpha requires both, horizontally first. Return false if
   out of memory. */
HIDDEN bool resample(const Image *image, const Table *across, const Table *down, bool vertical_first, Level level,
                     uint8_t *out);

/* Begin to resize an image row by row into `out`, horizontally first. `behind` is another sink for the same rows, or
   NULL. The memory of the tables and `behind` must remain until end_rows(). Return NULL if out of memory. */
HIDDEN RowSink *begin_rows(int64_t height, int64_t width, int32_t channels, const Table *across, const Table *down,
                           Level level, uint8_t *out, RowSink *behind);
HIDDEN void end_rows(RowSink *sink);
