/* What presize/codecs/_jpeg_decoder.c calls: the decoder, compiled for each kind of processor. */

#pragma once

#include <stdbool.h>
#include <stdint.h>

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
} Request;

/* False for anything out of the ordinary; `out` is then undefined. */
typedef bool Decoder(const Request *request);

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN Decoder decode_jpeg; /* for every processor of this architecture */
#ifdef __x86_64__
HIDDEN Decoder decode_jpeg_avx2;
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
