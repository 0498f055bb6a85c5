/* A target for libFuzzer: the decoder of presize/codecs/_jpeg_decoder.c, without Python, by each kind of processor that
   this one can be. tools/fuzz_coverage.py compiles it with sanitizers. Whether pixels are right is for Python to compare,
   on what this finds; here they must be the same for every kind that accepts the file. */

#include <stdlib.h>

#define WITHOUT_PYTHON
#include "../../presize/codecs/_jpeg_decoder.c"
#include "../../presize/codecs/jpeg/headers.h"

enum { MOST_PIXELS = 1 << 18 };

/* As the module's decode(): a box of an image whose header says `height` and `width`. */
static void try_box(Request request)
{
    const Box *box = &request.box;
    size_t bytes = (size_t)((box->bottom - box->top) * (box->right - box->left) * request.channels);
    uint8_t *outs[2] = {malloc(bytes), malloc(bytes)}; /* exactly, so that the sanitizer sees a byte too many */
    bool done[2];
    for (int avx2 = 0; outs[0] && outs[1] && avx2 <= has_avx2(); avx2++) {
        request.out = outs[avx2];
        done[avx2] = decode_with(avx2, &request);
        if (avx2 && done[0] && done[1] && memcmp(outs[0], outs[1], bytes))
            abort();
    }
    free(outs[0]);
    free(outs[1]);
}

/* Code it again; with AVX2 the bytes must be the same. There is less room than many files need. */
static void try_recoding(const uint8_t *data, size_t size, int64_t interval)
{
    size_t room = size + 8192;
    uint8_t *outs[2] = {malloc(room), malloc(room)};
    int64_t bytes[2] = {0};
    for (int avx2 = 0; outs[0] && outs[1] && avx2 <= has_avx2(); avx2++) {
        bytes[avx2] = recode_with(avx2, data, data + size, interval, outs[avx2], (int64_t)room);
        if (avx2 && (bytes[0] != bytes[1] || memcmp(outs[0], outs[1], (size_t)bytes[0])))
            abort();
    }
    free(outs[0]);
    free(outs[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Image image = {.data = data, .end = data + size};
    if (!parse(&image) || image.height * image.width > MOST_PIXELS)
        return 0;
    uint64_t random = 14695981039346656037u; /* FNV-1a: one input always gives the same boxes */
    for (size_t i = 0; i < size; i++)
        random = (random ^ data[i]) * 1099511628211u;
    static const int CHANNELS[3] = {1, 3, 4};
    for (int scale = 1; scale <= 8; scale *= 2) {
        int64_t height = (image.height + scale - 1) / scale, width = (image.width + scale - 1) / scale;
        Request request = {data, data + size, image.height, image.width, scale, {0, 0, height, width}, 0, NULL, NULL};
        request.channels = CHANNELS[random % 3];
        try_box(request);
        int64_t top = (int64_t)((random >> 8 & 0xFFFF) % (uint64_t)height);
        int64_t left = (int64_t)((random >> 24 & 0xFFFF) % (uint64_t)width);
        int64_t rows = 1 + (int64_t)((random >> 40 & 0xFFF) % (uint64_t)(height - top));
        int64_t columns = 1 + (int64_t)((random >> 52) % (uint64_t)(width - left));
        request.box = (Box){top, left, top + rows, left + columns};
        request.channels = CHANNELS[(random >> 4) % 3];
        try_box(request);
        random = random * 6364136223846793005u + 1;
    }
    try_recoding(data, size, 1 + (int64_t)(random % 8));
    int64_t mcus = image.rows * image.columns, tiles = image.interval ? (mcus + image.interval - 1) / image.interval : 1;
    uint8_t *lengths = tiles > 0 ? malloc((size_t)(2 * tiles)) : NULL;
    if (lengths)
        measure_tiles(image.scan, image.end, tiles, lengths);
    free(lengths);
    return 0;
}
