/* What a decoder writes an image to whose rows are resized as they come, so that it never stands in memory: _jpeg_decoder
   gets it from _pillow_resize in a capsule. */

#pragma once

#include <stdint.h>

#define ROW_SINK "presize.codecs.row_sink"

enum {
    MOST_ROWS = 32 /* there is room for */
};

typedef struct RowSink {
    int64_t height, row_bytes; /* of the image */
    uint8_t *rows;             /* row y is at y modulo `count` */
    int64_t count;             /* which the decoder sets; one row at least stays from call to call */
    void (*take)(struct RowSink *sink, int64_t end); /* resize the rows before `end` */
} RowSink;
