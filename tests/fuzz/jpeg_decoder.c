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
    uint8_t *plain = malloc(bytes), *other = malloc(bytes); /* exact size, so that the sanitizer detects an overrun */
    request.out = plain;
    const bool done = plain && other && decode_with(ANY, &request);
    request.out = other;
    for (Level level = AVX2; plain && other && level <= best_level(); level++)
        if (decode_with(level, &request) && done && memcmp(plain, other, bytes))
            abort();
    free(plain);
    free(other);
}

/* Codes the file again; the bytes must be the same with AVX2. The room is too small for many files. */
static void try_recoding(const uint8_t *data, size_t size, int64_t interval)
{
    const int64_t room = (int64_t)size + 8192;
    uint8_t *plain = malloc((size_t)room), *other = malloc((size_t)room);
    if (plain && other && best_level() >= AVX2) {
        const int64_t bytes = recode_with(ANY, data, data + size, interval, plain, room);
        if (recode_with(AVX2, data, data + size, interval, other, room) != bytes || memcmp(plain, other, (size_t)bytes))
            abort();
    }
    free(plain);
    free(other);
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
