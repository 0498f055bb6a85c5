/* Resizes images of 8 bits as Pillow does, to the byte.

       tables.c          the weights of one axis, and how the kernels read pixels by them
       passes.c          both passes over an image, by the kernels of the processor
       any.c             kernels in plain C
       avx2.c avx512.c   kernels.h, compiled for either kind of processor

   An axis is resized by weights of 22 bits, and rounded to 8 bits. Nothing here knows Python. */

#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../row_sink.h"

enum {
    BITS = 22,               /* of a weight; 1 << BITS is 1 */
    MOST_WEIGHT = 7 << 20,   /* more than the absolute weights of a pixel add up to: sums with pixels fit 32 bits */
    MOST_SIDE = (1 << 24) - 1, /* pixels; float has them exactly */
    MOST_CHANNELS = 4,
    LINE = 64 /* bytes: of the processor's caches, and of the longest vector */
};

typedef enum { BOX, BILINEAR, HAMMING, BICUBIC, LANCZOS, FILTERS } Filter;

typedef enum { ANY, AVX2, AVX512, LEVELS } Level;

/* How kernels with vectors read a row: by windows, each of which has the pixels of a group of values of the result, half as
   many values as it has bytes, LINEAR and CLOSE, or a quarter as many, WIDE; or one pixel of the result after the other,
   ONES, where the pixels of a group lie too far apart. LINEAR, each value lies between two pixels. */
typedef enum { PLAIN, LINEAR, CLOSE, WIDE, ONES } Reading;

typedef struct {
    int32_t inputs, outputs; /* pixels */
    float begin, end;        /* what of the inputs becomes the outputs; of the whole ones, where these are a part */
    Filter filter;
    int32_t channels; /* of a pixel; 0 for the vertical axis */
    bool mirrored;    /* the inputs lie in memory from right to left */
    bool flipped;     /* the outputs are written from right to left */
    Level level;
    int32_t whole_inputs, whole_outputs;     /* of the axis, if inputs and outputs are a part of it; else 0 */
    int32_t skipped_inputs, skipped_outputs; /* before that part */
} Axis;

/* What the memory of a table begins with. */
typedef struct {
    int32_t inputs, outputs, channels, level;
    int32_t taps;    /* inputs that each output is blended of; first + taps <= inputs */
    int32_t reading; /* Reading */
    int32_t steps;   /* LINEAR, CLOSE, WIDE: pairs of taps; ONES: loads of 16 bytes */
    int32_t reach;   /* bytes of a row that may be read */
} Head;

/* A table, read. In the order of its memory. */
typedef struct {
    const Head *head;
    const int32_t *firsts;  /* (outputs): the first of the taps of each */
    const int32_t *weights; /* (outputs, taps) */
    /* For channels of AVX2 and AVX512. A weight is 1 << 16 times its high part, which has 8 bits, and its low one. */
    const int32_t *places; /* bytes from the beginning of a row: of each window, or of each output's first pixel */
    const int16_t *lows;
    const int8_t *highs;
    const uint8_t *picks; /* where in a window the pixels of its values lie */
} Table;

/* The sizes of a vector and of what it is read from. */
static inline int32_t vector_bytes(Level level) { return level == AVX512 ? 64 : 32; }
static inline int32_t window_bytes(Level level) { return level == AVX512 ? 64 : 16; }

/* Whether a value of these weights lies between both pixels. */
static inline bool is_between(int32_t first, int32_t second)
{
    return first >= 0 && second >= 0 && first + second == 1 << BITS;
}

/* Bytes of a resized row, with those that whole vectors write behind its end. */
static inline int64_t padded_bytes(int64_t bytes) { return (bytes + 2 * LINE - 1) / LINE * LINE; }

typedef struct {
    const uint8_t *pixels; /* the first row */
    int64_t stride;        /* bytes from row to row, of either sign */
    int64_t height, width; /* pixels */
    int32_t channels;
    bool has_alpha; /* the fourth channel is: colours count as much as they cover */
} Image;

/* Kernels resize two rows, or blend rows to one. */
typedef struct {
    /* Writes padded_bytes() of each `to`; reads `reach` bytes of each row. */
    void (*across)(const Table *table, const uint8_t *const row[2], uint8_t *const to[2]);
    /* Writes `bytes` bytes. There is one more row, whose weight is 0, where `taps` is odd. `room` has 3 * (taps + 1)
       bytes. */
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

/* The best level of this processor. */
HIDDEN Level best_level(void);

/* Fill `table` from `memory`, which make_table made for these sizes. False if it did not: only the head is checked. */
HIDDEN bool read_table(const void *memory, int64_t bytes, int32_t inputs, int32_t outputs, int32_t channels, Level level,
                       Table *table);

/* Make a table in memory of malloc, of `bytes` bytes. NULL without memory, or with `is_for_us` false: the sizes or the
   part of the inputs are not ones that Pillow takes, too. */
HIDDEN void *make_table(const Axis *axis, int64_t *bytes, bool *is_for_us);

/* Resize `image` into `out`, rows side by side: horizontally first, or vertically with `vertical_first`. A pass without
   a table is left out; there is one at least. With alpha there are both, and the horizontal pass is first. False without
   memory. */
HIDDEN bool resample(const Image *image, const Table *across, const Table *down, bool vertical_first, Level level,
                     uint8_t *out);

/* Begin to resize an image into `out`, horizontally first, whose rows are yet to come. What the tables were read from has to
   stay until end_rows(), and so has `behind`, if there is one: a sink of rows of the same size, which then takes those of
   this one, too. NULL without memory. */
HIDDEN RowSink *begin_rows(int64_t height, int64_t width, int32_t channels, const Table *across, const Table *down,
                           Level level, uint8_t *out, RowSink *behind);
HIDDEN void end_rows(RowSink *sink);
