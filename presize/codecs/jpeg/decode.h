/* The decoder, from a file to the pixels of a box. Chroma upsampling and colour conversion add and round like the SIMD
   code of libjpeg-turbo (jdsample, jdcolext); the size of each transformed component is chosen as in its jdmaster.
   Included once for each kind of processor. */

#include <stdlib.h>

#include "decoder.h"
#include "headers.h"
#include "vectors.h"

#include "huffman.h"
#include "idct.h"

enum {
    GROUP = 8,    /* MCUs to read before transforming them; their coefficients stay in the L1 cache */
    SLACK = 2048, /* bytes; an MCU has at most 6 blocks of 64 codes of 27 bits, including their values */
    PADDING = 64  /* bytes past the end of a row that a vector may read or write */
};

typedef struct {
    const Image *image;
    Box box;
    int channels; /* 1: grey, 3: RGB, 4: BGRX */
    uint8_t *out;
    RowSink *sink; /* or NULL */
    int scale;
    int64_t height, width; /* of the image at this scale */
    int sizes[3];          /* side of a block of each component at this scale, in samples: 8, 4, 2 or 1 */
    int h, v;              /* luma samples per chroma sample at this scale */
    bool interpolates;     /* interpolate subsampled chroma; otherwise repeat it */
    int64_t mcu_height, mcu_width; /* in pixels */
    Box wanted;                    /* the MCUs to decode; all others are skipped */
    const Huffman *dc[3], *ac[3];
    int16_t quants[3][64];
    bool only_means[3]; /* whether only the DC coefficients of a component are needed */
    int16_t *blocks[3]; /* one group of MCUs: row by row of blocks, from left to right */
    uint8_t *kinds[3];  /* the result of read_block for each block */
    uint8_t *planes[3]; /* samples of the last two rows of MCUs: row y is at y modulo their height */
    int64_t strides[3];
    int16_t *sums;      /* a row of chroma, interpolated vertically */
    uint8_t *chroma[2]; /* rows of chroma, as wide as luma */
    uint8_t *clean;     /* a restart interval without stuffed bytes */
    int64_t clean_bytes;
    Bits bits;
    uint32_t predicted[3];
    int64_t y; /* the next row of pixels to write */
} Work;

/* Copy a restart interval, up to its marker or to `end`, without stuffed bytes. Return its end. */
TARGET static const uint8_t *begin_interval(Work *work, const uint8_t *at, const uint8_t *end)
{
    uint8_t *to = work->clean;
    while (at < end) {
        if (end - at >= (int)sizeof(V)) {
            V some = load(at);
            store(to, some);
            int before = before_ff(some);
            at += before;
            to += before;
            if (before == sizeof(V))
                continue;
        }
        if (*at == 0xFF) {
            if (end - at < 2 || at[1])
                break;
            at++;
            *to++ = 0xFF;
        } else
            *to++ = *at;
        at++;
    }
    work->clean_bytes = to - work->clean;
    memset(to, 0, PADDING);
    work->bits = (Bits){work->clean, 0, 0};
    refill(&work->bits);
    memset(work->predicted, 0, sizeof work->predicted);
    return at;
}

/* Return whether exactly the bytes of the interval were consumed. */
static bool ends_interval(const Work *work)
{
    int64_t left = 8 * (work->clean_bytes - (work->bits.at - work->clean)) + work->bits.count;
    return left >= 0 && left < 8;
}

/* Transform a row of `count` blocks of one component. */
TARGET static bool transform_blocks(const Work *work, int c, const int16_t *blocks, const uint8_t *kinds, int64_t count,
                                    uint8_t *to)
{
    int64_t stride = work->strides[c];
    int size = work->sizes[c];
    const int16_t *quant = work->quants[c];
    bool sound = true;
    if (work->only_means[c]) {
        for (int64_t at = 0; at < count; at++)
            sound &= flatten(blocks[at], *quant, size, to + size * at, stride);
        return sound;
    }
    bool (*idct)(const Blocks *, const int16_t *, int64_t) = size == 8 ? idct8 : size == 4 ? idct4 : idct2;
    for (int64_t at = 0; at < count; at += PARTS) {
        Blocks some;
        bool is_flat = true;
        for (int64_t part = 0; part < PARTS; part++) {
            int64_t block = at + part < count ? at + part : at; /* the same again */
            some.from[part] = blocks + 64 * block;
            some.to[part] = to + size * block;
            is_flat &= kinds[block] == FLAT;
        }
        if (!is_flat)
            sound &= idct(&some, quant, stride);
        for (int part = 0; part < PARTS && is_flat; part++)
            sound &= flatten(*some.from[part], *quant, size, some.to[part], stride);
    }
    return sound;
}

/* Transform a group of MCUs, from `column` to `end`, both counted from the first wanted MCU. */
TARGET static bool transform_group(const Work *work, int64_t row, int64_t column, int64_t end)
{
    const Image *image = work->image;
    for (int c = 0; c < (work->channels == 1 ? 1 : image->count); c++) {
        int v = image->components[c].v, h = image->components[c].h, size = work->sizes[c];
        for (int i = 0; i < v; i++) {
            int64_t first = i * GROUP * h, y = size * (row * v + i) & (2 * size * v - 1);
            const int16_t *blocks = work->blocks[c] + (work->only_means[c] ? 1 : 64) * first;
            uint8_t *to = work->planes[c] + y * work->strides[c] + size * h * column;
            if (!transform_blocks(work, c, blocks, work->kinds[c] + first, h * (end - column), to))
                return false;
        }
    }
    return true;
}

/* Read the MCU at `column`, counted from the first wanted one, and transform the group if it is complete. */
TARGET static bool read_mcu(Work *work, int64_t row, int64_t column)
{
    const Image *image = work->image;
    Bits bits = work->bits;
    int64_t in_group = column % GROUP;
    for (int c = 0; c < image->count; c++) {
        const Component *component = &image->components[c];
        for (int v = 0; v < component->v; v++)
            for (int h = 0; h < component->h; h++) {
                int64_t at = (v * GROUP + in_group) * component->h + h;
                Kind kind;
                if (work->only_means[c]) {
                    bool sound = read_dc(&bits, work->dc[c], work->blocks[c] + at, &work->predicted[c]);
                    kind = sound && pass_codes(&bits, work->ac[c]) ? FLAT : DAMAGED;
                } else
                    kind = read_block(&bits, work->dc[c], work->ac[c], work->blocks[c] + 64 * at, &work->predicted[c]);
                if (kind == DAMAGED)
                    return false;
                work->kinds[c][at] = (uint8_t)kind;
            }
    }
    work->bits = bits;
    if (bits.at > work->clean + work->clean_bytes + 8)
        return false;
    if (in_group < GROUP - 1 && column + 1 < work->wanted.right - work->wanted.left)
        return true;
    return transform_group(work, row, column - in_group, column + 1);
}

/* Skip an unwanted MCU, to reach the next one. */
TARGET static bool pass_mcu(Work *work)
{
    const Image *image = work->image;
    Bits bits = work->bits;
    for (int c = 0; c < image->count; c++)
        for (int i = 0; i < image->components[c].h * image->components[c].v; i++) {
            int16_t ignored;
            if (!read_dc(&bits, work->dc[c], &ignored, &work->predicted[c]) || !pass_codes(&bits, work->ac[c]))
                return false;
        }
    work->bits = bits;
    return bits.at <= work->clean + work->clean_bytes + 8;
}

/* Convert LANES pixels of full-range BT.601 in 16-bit arithmetic. store3 writes past their end. */
INLINE void color(const uint8_t *y8, const uint8_t *cb8, const uint8_t *cr8, int channels, uint8_t *out)
{
    const V center = OP(set1_epi16)(128), one = OP(set1_epi16)(1);
    V y = widen(y8), cb = OP(sub_epi16)(widen(cb8), center), cr = OP(sub_epi16)(widen(cr8), center);
    V cb2 = OP(add_epi16)(cb, cb), cr2 = OP(add_epi16)(cr, cr);
    V r = OP(mulhi_epi16)(cr2, OP(set1_epi16)(26345));  /* 0.402 */
    V b = OP(mulhi_epi16)(cb2, OP(set1_epi16)(-14942)); /* -0.228 */
    r = OP(add_epi16)(OP(add_epi16)(y, cr), OP(srai_epi16)(OP(add_epi16)(r, one), 1));
    b = OP(add_epi16)(OP(add_epi16)(y, cb2), OP(srai_epi16)(OP(add_epi16)(b, one), 1));
    const V factors = PAIR(-22554, 18734); /* -0.34414, 0.28586 */
    V lo = OP(madd_epi16)(OP(unpacklo_epi16)(cb, cr), factors), hi = OP(madd_epi16)(OP(unpackhi_epi16)(cb, cr), factors);
    V g = descaled((Wide){lo, hi}, 16);
    g = OP(sub_epi16)(OP(add_epi16)(y, g), cr);

    V first = channels == 4 ? OP(packus_epi16)(b, r) : OP(packus_epi16)(r, b);
    V second = OP(packus_epi16)(g, OP(set1_epi16)(255));
    V low = OP(unpacklo_epi8)(first, second), high = OP(unpackhi_epi8)(first, second);
    V even = OP(unpacklo_epi16)(low, high), odd = OP(unpackhi_epi16)(low, high);
    if (channels == 4)
        store4(out, even, odd);
    else
        store3(out, even, odd);
}

/* Return a row of chroma for the columns of the box, as wide as luma. */
TARGET static const uint8_t *chroma_row(Work *work, int c, int64_t y)
{
    const uint8_t *plane = work->planes[c];
    int64_t stride = work->strides[c], origin = work->sizes[c] * work->wanted.left, mask = 2 * work->sizes[c] - 1;
    int64_t last_row = (work->height - 1) / work->v, last = (work->width - 1) / work->h;
    int64_t near = y / work->v, far = work->v == 1 ? near : y & 1 ? near + 1 : near - 1;
    far = far < 0 ? 0 : far > last_row ? last_row : far;
    const uint8_t *a = plane + (near & mask) * stride - origin, *b = plane + (far & mask) * stride - origin;
    int64_t left = work->box.left, right = work->box.right;
    uint8_t *wide = work->chroma[c - 1];
    if (work->h == 1 && (work->v == 1 || !work->interpolates))
        return a + left;
    if (!work->interpolates) {
        for (int64_t x = left; x < right; x++)
            wide[x - left] = a[x / 2];
        return wide;
    }
    if (work->h == 1) {
        int bias = y & 1 ? 2 : 1;
        for (int64_t x = left; x < right; x++)
            wide[x - left] = (uint8_t)((3 * a[x] + b[x] + bias) >> 2);
        return wide;
    }
    int64_t from = left / 2, to = (right + 1) / 2; /* in samples; `sums` has one more at each end */
    int16_t *sums = work->sums + PADDING - from;
    const V three = OP(set1_epi16)(3);
    for (int64_t x = from - 1; x <= to; x += LANES) {
        V sum = widen(a + x);
        if (work->v == 2)
            sum = OP(add_epi16)(OP(mullo_epi16)(sum, three), widen(b + x));
        store(sums + x, sum);
    }
    if (from == 0)
        sums[-1] = sums[0];
    if (to > last)
        sums[to] = sums[last];
    const V even = OP(set1_epi16)(work->v == 2 ? 8 : 1), odd = OP(set1_epi16)(work->v == 2 ? 7 : 2);
    for (int64_t x = from; x < to; x += LANES) {
        V sum = OP(mullo_epi16)(load(sums + x), three);
        V before = OP(add_epi16)(sum, OP(add_epi16)(load(sums + x - 1), even));
        V behind = OP(add_epi16)(sum, OP(add_epi16)(load(sums + x + 1), odd));
        before = work->v == 2 ? OP(srli_epi16)(before, 4) : OP(srli_epi16)(before, 2);
        behind = work->v == 2 ? OP(srli_epi16)(behind, 4) : OP(srli_epi16)(behind, 2);
        store(wide + 2 * (x - from), or(before, OP(slli_epi16)(behind, 8)));
    }
    return wide + (left & 1);
}

TARGET static void write_row(Work *work, int64_t y)
{
    static const uint8_t GREY[PADDING] = {[0 ... PADDING - 1] = 128};
    int64_t width = work->box.right - work->box.left, row_bytes = width * work->channels;
    const uint8_t *luma = work->planes[0] + (y & (2 * work->mcu_height - 1)) * work->strides[0];
    luma += work->box.left - work->mcu_width * work->wanted.left;
    uint8_t *out = work->out + (work->sink ? y % work->sink->count : y - work->box.top) * row_bytes;
    if (work->channels == 1) {
        memcpy(out, luma, (size_t)width);
        return;
    }
    bool grey = work->image->count == 1;
    const uint8_t *cb = grey ? GREY : chroma_row(work, 1, y), *cr = grey ? GREY : chroma_row(work, 2, y);
    int64_t step = grey ? 0 : 1, x = 0;
    /* color writes up to four bytes past its pixels, so the last pixels of a row go through a buffer. */
    for (; x + LANES + 2 <= width; x += LANES)
        color(luma + x, cb + step * x, cr + step * x, work->channels, out + work->channels * x);
    for (; x < width; x += LANES) {
        uint8_t last[4 * LANES + 4];
        color(luma + x, cb + step * x, cr + step * x, work->channels, last);
        memcpy(out + work->channels * x, last, (size_t)((width - x < LANES ? width - x : LANES) * work->channels));
    }
}

/* Write the pixels of a row of MCUs. Its last row of pixels waits for the chroma of the next row. */
TARGET static void finish_row(Work *work, int64_t row)
{
    int64_t until = row + 1 == work->wanted.bottom ? work->box.bottom : (row + 1) * work->mcu_height - (work->v - 1);
    for (; work->y < until && work->y < work->box.bottom; work->y++)
        write_row(work, work->y);
    if (work->sink)
        work->sink->take(work->sink, work->y);
}

/* Decode an MCU, or skip it. */
TARGET static bool take_mcu(Work *work, int64_t row, int64_t column)
{
    Box wanted = work->wanted;
    if (row < wanted.top || row >= wanted.bottom || column < wanted.left || column >= wanted.right)
        return pass_mcu(work);
    if (!read_mcu(work, row, column - wanted.left))
        return false;
    if (column + 1 == wanted.right)
        finish_row(work, row);
    return true;
}

/* Return the MCUs under a box and, for subsampled chroma, under the pixels next to it. At every scale, they are those
   whose tiles presize.codecs.jpeg.tiles cuts out, so that both detect the same errors. */
static Box mcus_under(const Image *image, Box box, int scale)
{
    int64_t height = 8 * image->v, width = 8 * image->h;
    int64_t top = box.top * scale, left = box.left * scale;
    int64_t last_row = (box.bottom * scale < image->height ? box.bottom * scale : image->height) - 1;
    int64_t last_column = (box.right * scale < image->width ? box.right * scale : image->width) - 1;
    int64_t bottom = (last_row + image->v - 1) / height + 1, right = (last_column + image->h - 1) / width + 1;
    return (Box){
        .top = top > 0 ? (top - (image->v - 1)) / height : 0,
        .left = left > 0 ? (left - (image->h - 1)) / width : 0,
        .bottom = bottom < image->rows ? bottom : image->rows,
        .right = right < image->columns ? right : image->columns,
    };
}

/* Return the end of a tile, or NULL if the index is wrong: it points outside the scan, or not to a marker. */
static const uint8_t *tile_end(const Image *image, int64_t tile, const uint8_t *at)
{
    int64_t length = u16(image->tiles + 2 * tile);
    int marker = 2 * (tile + 1) == image->tile_bytes ? 0xD9 : 0xD0 + (int)(tile & 7);
    if (length < 2 || length > image->end - at || u16(at + length - 2) != (0xFF00 | marker))
        return NULL;
    return at + length;
}

/* Decode a tile, which may begin in one row of MCUs and end in the next one. */
TARGET static bool decode_tile(Work *work, int64_t tile, const uint8_t *begin, const uint8_t *end)
{
    const Image *image = work->image;
    if (begin_interval(work, begin, end) != end)
        return false;
    int64_t mcu = tile * image->interval, row = mcu / image->columns, column = mcu % image->columns;
    int64_t left = image->rows * image->columns - mcu;
    for (int64_t i = left < image->interval ? left : image->interval; i > 0; i--) {
        if (!take_mcu(work, row, column))
            return false;
        if (++column == image->columns)
            column = 0, row++;
    }
    return ends_interval(work);
}

/* Decode only the tiles with wanted MCUs, by the tile index. */
TARGET static bool decode_tiles(Work *work)
{
    const Image *image = work->image;
    const uint8_t *at = image->scan;
    int64_t tile = 0;
    for (int64_t row = work->wanted.top; row < work->wanted.bottom; row++) {
        int64_t first = (row * image->columns + work->wanted.left) / image->interval;
        int64_t last = (row * image->columns + work->wanted.right - 1) / image->interval;
        for (; tile <= last; tile++) {
            const uint8_t *begin = at;
            if (!(at = tile_end(image, tile, begin)))
                return false;
            if (tile >= first && !decode_tile(work, tile, begin, at - 2))
                return false;
        }
    }
    return true;
}

/* Begin restart interval `number`, counted from 0: the first at `at`, all others after the marker there. Return NULL if
   that is not the expected marker, or if the previous interval was not read to its end. */
TARGET static const uint8_t *next_interval(Work *work, const uint8_t *at, int64_t number)
{
    const uint8_t *end = work->image->end;
    if (number > 0) {
        if (!ends_interval(work) || end - at < 2 || at[1] != 0xD0 + ((number - 1) & 7))
            return NULL;
        at += 2;
    }
    return begin_interval(work, at, end);
}

/* Return whether the last interval was read to its end, and the end marker follows. */
static bool ends_scan(const Work *work, const uint8_t *at)
{
    return ends_interval(work) && work->image->end - at >= 2 && at[1] == 0xD9;
}

/* Decode the whole scan, without an index. */
TARGET static bool decode_scan(Work *work)
{
    const Image *image = work->image;
    int64_t left = 0, number = 0;
    const uint8_t *at = image->scan;
    for (int64_t row = 0; row < image->rows; row++) {
        for (int64_t column = 0; column < image->columns; column++) {
            if (left == 0) {
                if (!(at = next_interval(work, at, number++)))
                    return false;
                left = image->interval ? image->interval : image->rows * image->columns;
            }
            if (!take_mcu(work, row, column))
                return false;
            left--;
        }
    }
    return ends_scan(work, at);
}

/* Return whether blank blocks have a code. Without one, presize.codecs.jpeg.tiles cannot cut tiles that span rows, and
   the whole image is decoded. This decoder then refuses the image: libjpeg-turbo also decodes all of it, and detects
   the same errors. */
static bool has_blanks(const Image *image)
{
    for (int c = 0; c < image->count; c++)
        for (int of_ac = 0; of_ac < 2; of_ac++) {
            int table = of_ac ? image->components[c].ac : image->components[c].dc;
            if (!memchr(image->huffmans[of_ac][table] + 16, 0, (size_t)image->symbols[of_ac][table]))
                return false;
        }
    return true;
}

/* Return whether tiles may have this width, and the index has a length for each that together make up the scan. */
static bool has_sound_index(const Image *image)
{
    int64_t tiles = image->tile_bytes / 2, k = image->interval, bytes = 0;
    if (k < 1 || k > image->columns || (k == 1 && image->columns > 1))
        return false;
    if (image->columns % k && !has_blanks(image))
        return false;
    if (image->tile_bytes % 2 || tiles != (image->rows * image->columns + k - 1) / k)
        return false;
    for (int64_t tile = 0; tile < tiles; tile++)
        bytes += u16(image->tiles + 2 * tile);
    return bytes == image->end - image->scan;
}

static size_t aligned(int64_t bytes) { return (size_t)(bytes + 2 * PADDING - 1) / PADDING * PADDING; }

/* Allocate the buffers of `work` in one block, and return it for free(). */
static uint8_t *prepare(Work *work)
{
    const Image *image = work->image;
    int64_t columns = work->wanted.right - work->wanted.left;
    size_t bytes[14], count = 0, total = PADDING;
    for (int c = 0; c < image->count; c++) {
        const Component *component = &image->components[c];
        int64_t blocks = GROUP * component->h * component->v;
        work->strides[c] = (int64_t)aligned(work->sizes[c] * columns * component->h);
        bytes[count++] = aligned(64 * blocks * (int64_t)sizeof(int16_t));
        bytes[count++] = aligned(blocks);
        bytes[count++] = aligned(2 * work->sizes[c] * component->v * work->strides[c]);
    }
    int64_t width = work->mcu_width * columns;
    bytes[count++] = aligned(2 * width + 4 * PADDING);
    bytes[count++] = aligned(width + 2);
    bytes[count++] = aligned(width + 2);
    bytes[count++] = aligned(image->tiles ? 0xFFFF : image->end - image->scan) + SLACK;
    for (size_t i = 0; i < count; i++)
        total += bytes[i];
    uint8_t *memory = malloc(total);
    if (!memory)
        return NULL;
    uint8_t *at = memory + (PADDING - (uintptr_t)memory % PADDING);
    count = 0;
    for (int c = 0; c < image->count; c++) {
        work->blocks[c] = (int16_t *)at, at += bytes[count++];
        work->kinds[c] = at, at += bytes[count++];
        work->planes[c] = at, at += bytes[count++];
    }
    work->sums = (int16_t *)at, at += bytes[count++];
    work->chroma[0] = at, at += bytes[count++];
    work->chroma[1] = at, at += bytes[count++];
    work->clean = at;
    return memory;
}

/* Choose the size of each transformed component, like libjpeg-turbo: at a reduced scale, chroma of half the resolution
   on both axes becomes as large as luma. Return false if chroma is so narrow that libjpeg-turbo repeats it. */
static bool choose_sizes(Work *work, int scale)
{
    const Image *image = work->image;
    bool enlarges = scale > 1 && image->h == 2 && image->v == 2;
    int size = 8 / scale;
    work->scale = scale;
    work->height = (image->height + scale - 1) / scale;
    work->width = (image->width + scale - 1) / scale;
    work->h = enlarges ? 1 : image->h;
    work->v = enlarges ? 1 : image->v;
    work->interpolates = scale < 8;
    work->mcu_height = size * image->v;
    work->mcu_width = size * image->h;
    for (int c = 0; c < image->count; c++) {
        work->sizes[c] = c > 0 && enlarges ? 2 * size : size;
        work->only_means[c] = work->sizes[c] == 1 || (c > 0 && work->channels == 1);
    }
    return work->h == 1 || !work->interpolates || (work->width + 1) / 2 > 2;
}

/* Find the Huffman tables of each component, with tables for skipping codes if only means or some MCUs are wanted. */
static bool find_tables(Work *work)
{
    const Image *image = work->image;
    bool passes_some = work->wanted.right - work->wanted.left < image->columns ||
                       work->wanted.bottom - work->wanted.top < image->rows;
    for (int c = 0; c < image->count; c++) {
        const Component *component = &image->components[c];
        int dc = component->dc, ac = component->ac, chroma = c > 0;
        bool passes = passes_some || work->only_means[c];
        if (c == 2 && (dc != image->components[1].dc || ac != image->components[1].ac))
            return false; /* no encoder writes such files */
        work->dc[c] = table_of(image->huffmans[0][dc], image->symbols[0][dc], true, 2 * chroma, false);
        work->ac[c] = table_of(image->huffmans[1][ac], image->symbols[1][ac], false, 2 * chroma + 1, passes);
        if (!work->dc[c] || !work->ac[c])
            return false;
    }
    return true;
}

bool ENTRY(const Request *request)
{
    Image parsed = {.data = request->data, .end = request->end};
    const Image *image = &parsed;
    if (!parse(&parsed) || (image->tiles && !has_sound_index(image)))
        return false;
    if (image->height != request->height || image->width != request->width)
        return false;
    Box box = request->box;
    Work work = {
        .image = image,
        .box = box,
        .channels = request->channels,
        .out = request->sink ? request->sink->rows : request->out,
        .sink = request->sink,
        .wanted = mcus_under(image, box, request->scale),
        .y = box.top,
    };
    if (!choose_sizes(&work, request->scale))
        return false;
    if (work.sink)
        work.sink->count = 2 * work.mcu_height; /* the rows of a row of MCUs, and one that may stay */
    for (int c = 0; c < image->count; c++)
        for (int i = 0; i < 64; i++)
            work.quants[c][i] = (int16_t)image->quants[image->components[c].quant][i];
    if (!find_tables(&work))
        return false;
    uint8_t *memory = prepare(&work);
    if (!memory)
        return false;
    bool done = image->tiles ? decode_tiles(&work) : decode_scan(&work);
    free(memory);
    return done;
}
