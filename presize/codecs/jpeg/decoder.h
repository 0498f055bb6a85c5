/* What presize/codecs/_jpeg_decoder.c calls: the decoder, compiled for each kind of processor. */

#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../row_sink.h"

typedef struct {
    int64_t top, left, bottom, right;
} Box;

typedef struct {
    const uint8_t *data, *end; /* the JPEG */
    int64_t height, width;     /* it has to have, in pixels */
    int scale;                 /* 1, 2, 4 or 8: decode at 1/scale, each side rounded up */
    Box box;                   /* not empty, and inside the image at that scale */
    int channels;              /* 1: grey, 3: RGB, 4: BGRX */
    uint8_t *out;              /* the box, row by row */
    RowSink *sink;             /* NULL, or what takes the rows of the whole image in place of `out` */
} Request;

/* False for anything out of the ordinary; `out` is then undefined. */
typedef bool Decoder(const Request *request);

/* Code the scan of a JPEG without a tile index again, in restart intervals of `interval` MCUs, at least 1. Returns how
   many bytes of `out` that has taken, up to and including the end marker; 0 for a header, tables or codes that a Decoder
   refuses, and if there is no room. */
typedef int64_t Recoder(const uint8_t *data, const uint8_t *end, int64_t interval, uint8_t *out, int64_t out_bytes);

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN Decoder decode_jpeg; /* for every processor of this architecture */
HIDDEN Recoder recode_jpeg;
#ifdef __x86_64__
HIDDEN Decoder decode_jpeg_avx2;
HIDDEN Recoder recode_jpeg_avx2;
#endif

/* Whether this processor has what decode_jpeg_avx2 needs. */
static inline bool has_avx2(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#else
    return false;
#endif
}

static inline bool decode_with(bool avx2, const Request *request)
{
#ifdef __x86_64__
    if (avx2)
        return decode_jpeg_avx2(request);
#endif
    (void)avx2;
    return decode_jpeg(request);
}

static inline int64_t recode_with(bool avx2, const uint8_t *data, const uint8_t *end, int64_t interval, uint8_t *out,
                                  int64_t out_bytes)
{
#ifdef __x86_64__
    if (avx2)
        return recode_jpeg_avx2(data, end, interval, out, out_bytes);
#endif
    (void)avx2;
    return recode_jpeg(data, end, interval, out, out_bytes);
}
