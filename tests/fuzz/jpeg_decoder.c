/* libFuzzer target: the decoder of presize/codecs/_jpeg_decoder.c, without Python, with each instruction set of this
   processor. tools/fuzz_coverage.py compiles it with sanitizers. All instruction sets that accept a file must decode the
   same pixels; Python checks the pixels of the found files. */

#include <stdlib.h>

#define WITHOUT_PYTHON
#include "../../presize/codecs/_jpeg_decoder.c"
#include "../../presize/codecs/jpeg/headers.h"

enum { MOST_PIXELS = 1 << 18 };

/* Decodes a box like the module's decode(); the header of the image declares `height` and `width`. */
static void try_box(Request request)
{
    const Box *box = &request.box;
    size_t bytes = (size_t)((box->bottom - box->top) * (box->right - box->left) * request.channels);
    uint8_t *outs[2] = {malloc(bytes), malloc(bytes)}; /* exact size, so that the sanitizer detects an overrun */
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

/* Codes the file again; the bytes must be the same with AVX2. The room is too small for many files. */
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
    uint64_t random = 14695981039346656037u; /* FNV-1a: an input always yields the same boxes */
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
