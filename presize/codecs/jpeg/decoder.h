/* Interface of the decoder for presize/codecs/_jpeg_decoder.c. It is compiled for each kind of processor. */

#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../level.h"
#include "../row_sink.h"

typedef struct {
    int64_t top, left, bottom, right;
} Box;

typedef struct {
    const uint8_t *data, *end; /* the JPEG */
    int64_t height, width;     /* required size of the JPEG in pixels */
    int scale;                 /* 1, 2, 4 or 8: decode at 1/scale, each side rounded up */
    Box box;                   /* not empty, and inside the image at that scale */
    int channels;              /* 1: grey, 3: RGB, 4: BGRX */
    uint8_t *out;              /* receives the box, row by row */
    RowSink *sink;             /* receives the rows of the whole image instead of `out`; NULL for none */
} Request;

/* Return false for anything unusual; `out` is then undefined. */
typedef bool Decoder(const Request *request);

/* Recode the scan of a JPEG without a tile index in restart intervals of `interval` MCUs, at least 1. Return the number
   of bytes written to `out`, including the end marker; 0 if a Decoder would refuse the header, tables or codes, or if
   `out` is too small. */
typedef int64_t Recoder(const uint8_t *data, const uint8_t *end, int64_t interval, uint8_t *out, int64_t out_bytes);

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN Decoder decode_jpeg; /* for every processor of this architecture */
HIDDEN Recoder recode_jpeg;
#ifdef __x86_64__
HIDDEN Decoder decode_jpeg_avx2, decode_jpeg_avx512;
HIDDEN Recoder recode_jpeg_avx2;
#endif

static inline bool decode_with(Level level, const Request *request)
{
#ifdef __x86_64__
    if (level == AVX512)
        return decode_jpeg_avx512(request);
    if (level == AVX2)
        return decode_jpeg_avx2(request);
#endif
    (void)level;
    return decode_jpeg(request);
}

static inline int64_t recode_with(Level level, const uint8_t *data, const uint8_t *end, int64_t interval, uint8_t *out,
                                  int64_t out_bytes)
{
#ifdef __x86_64__
    if (level >= AVX2)
        return recode_jpeg_avx2(data, end, interval, out, out_bytes);
#endif
    (void)level;
    return recode_jpeg(data, end, interval, out, out_bytes);
}
