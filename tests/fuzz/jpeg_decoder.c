/* A target for libFuzzer: the decoder of presize/codecs/_jpeg_decoder.c, without Python. tools/fuzz.py compiles it with
   sanitizers. Whether pixels are right is for Python to compare, on what this finds. */

#define WITHOUT_PYTHON
#include "../../presize/codecs/_jpeg_decoder.c"

enum { MOST_PIXELS = 1 << 18 };

/* As the module's decode(): a box of an image whose header says `height` and `width`. */
static void try_box(const uint8_t *data, size_t size, int64_t height, int64_t width, Box box, int channels)
{
    Image image = {.data = data, .end = data + size};
    size_t bytes = (size_t)((box.bottom - box.top) * (box.right - box.left) * channels);
    uint8_t *out = malloc(bytes); /* exactly, so that the sanitizer sees a byte too many */
    if (out)
        decode_box(&image, height, width, box, channels, out);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Image image = {.data = data, .end = data + size};
    if (!parse(&image) || image.height * image.width > MOST_PIXELS)
        return 0;
    int64_t height = image.height, width = image.width;
    uint64_t random = 14695981039346656037u; /* FNV-1a: one input always gives the same box */
    for (size_t i = 0; i < size; i++)
        random = (random ^ data[i]) * 1099511628211u;
    static const int CHANNELS[3] = {1, 3, 4};
    try_box(data, size, height, width, (Box){0, 0, height, width}, CHANNELS[random % 3]);
    int64_t top = (int64_t)((random >> 8 & 0xFFFF) % (uint64_t)height);
    int64_t left = (int64_t)((random >> 24 & 0xFFFF) % (uint64_t)width);
    int64_t rows = 1 + (int64_t)((random >> 40 & 0xFFF) % (uint64_t)(height - top));
    int64_t columns = 1 + (int64_t)((random >> 52) % (uint64_t)(width - left));
    try_box(data, size, height, width, (Box){top, left, top + rows, left + columns}, CHANNELS[(random >> 4) % 3]);
    int64_t tiles = image.interval ? image.rows * (image.columns / image.interval) : 1;
    uint8_t *lengths = tiles > 0 ? malloc((size_t)(2 * tiles)) : NULL;
    if (lengths)
        measure_tiles(image.scan, image.end, tiles, lengths);
    free(lengths);
    return 0;
}
