/* What datasets/reading/_resample.c calls: the resizer, compiled for each kind of processor; and its tables,
   which tables.py makes. */

#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    RGB = 3,
    MOST_PAIRS = 4, /* of pixels or rows that one is blended of */
    RING = 16,      /* rows that are kept: those of a row of the result, and one ahead */
    LINE = 64       /* bytes: of the processor's caches, and of the longest vector */
};

/* What each table begins with. */
typedef struct {
    int32_t inputs, outputs; /* pixels */
    int32_t pairs;           /* of pixels that each is blended of */
    int32_t shift, half;     /* half is added to what they sum up to, which then is shifted to the right */
    int32_t reach;           /* of a row, how many bytes may be read */
} Head;

/* How the values of a row are blended: in groups, for each of which a window of so many bytes of the row is enough. A
   group has half as many values with linear interpolation, and a quarter with antialiased. */
typedef struct {
    const Head *head;
    int64_t values, groups; /* of a row: values are padded to whole vectors of bytes */
    const int32_t *places;  /* of each group, the byte of the row where its window begins */
    const uint8_t *picks;   /* of each group, a window: where from there the pixels of its values lie */
    const uint8_t *weights; /* of each pair, of each group, a window */
} Across;

/* How rows are. */
typedef struct {
    const Head *head;
    const int32_t *firsts;  /* of each row, the first of those that it is blended of; -1 is row 0 once more */
    const int32_t *weights; /* of each row, of each pair: two of 16 bits */
} Down;

/* Behind its last row there may be no memory. */
typedef struct {
    const uint8_t *pixels;
    int64_t stride, height, width; /* bytes, pixels */
} Image;

/* In `memory` there is room() for it. */
typedef void Resizer(const Image *image, const Across *across, const Down *down, bool linear, void *memory, uint8_t *out);

/* How many bytes a Resizer needs. */
static inline int64_t room(const Image *image, const Across *across)
{
    return LINE + RING * (int64_t)sizeof(int16_t) * across->values + 2 * (RGB * image->width + across->head->reach);
}

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN Resizer resize_avx2;   /* windows of 16 bytes */
HIDDEN Resizer resize_avx512; /* of 64; takes AVX-512 with VBMI */
