/* Interface by which a decoder passes rows on to be resized, so that the whole image is never in memory. _pillow_resize
   creates it, and _jpeg_decoder receives it in a capsule. */

#pragma once

#include <stdint.h>

#define ROW_SINK "presize.codecs.row_sink"

enum {
    MOST_ROWS = 32 /* capacity of `rows` */
};

typedef struct RowSink {
    int64_t height, row_bytes; /* of the image */
    uint8_t *rows;             /* row y is at y modulo `count` */
    int64_t count;             /* set by the decoder; at least one row stays between calls */
    void (*take)(struct RowSink *sink, int64_t end); /* resize the rows before `end` */
} RowSink;
