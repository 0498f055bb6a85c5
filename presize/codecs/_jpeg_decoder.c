/* A decoder of baseline JPEG: bit-identical to libjpeg-turbo, and faster.

   Huffman decoding takes two thirds of the time to decode a photograph. Here stuffed zero bytes are removed from
   a scan first, one table look-up gives everything that a code means, and the coefficient follows from it without a
   branch. Of a tile-indexed JPEG (docs/format.md) only the tiles under a box are read. The sums, roundings and
   saturations of the inverse DCT, chroma upsampling and colour conversion are those of libjpeg-turbo's
   jidctint, jdsample and jdcolext, as its SIMD has them.

   Everything unusual (progressive and other processes, damage, whatever a decoder would warn about) is left to
   libjpeg-turbo: decode() returns False. The input may be hostile: each length is checked before it is used, sizes
   have 64 bits, and each restart interval is followed by more memory than an MCU can consume.
   tools/fuzz_jpeg_decoder.py and tests/fuzz/jpeg_decoder.c test this; the latter includes this file without Python. */

#ifndef WITHOUT_PYTHON
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#endif

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2,bmi,bmi2")))
#define INLINE static inline __attribute__((always_inline)) AVX2

enum {
    LOOK = 10,    /* bits per table look-up; 9 and 11 are no faster */
    NONE = 64,    /* the run of an invalid code: longer than a block */
    END = 128,    /* the run that ends a block */
    SLACK = 2048, /* bytes; an MCU has 6 blocks of 64 codes at most, of 27 bits with their values */
    PADDING = 64, /* bytes past the end of a row that a vector may read or write */
    MAX_SIDE = 65500 /* libjpeg's limit */
};

/* The natural position of each coefficient in zigzag order; coefficients past the end of a block go to the last. */
static const uint8_t NATURAL[END + 64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    [64 ... END + 63] = 63,
};

/* ---- Huffman codes ---- */

typedef struct {
    uint32_t looks[1 << LOOK]; /* the meaning of the code in these bits, 0 for a longer code */
    int32_t last[17];          /* the last code of each length, -1 if there is none */
    int32_t place[17];         /* index into symbols of code 0 of each length */
    uint8_t symbols[256];
} Huffman;

/* One byte each: bits of code and value, run before the value, 63 minus bits of the value, bits of the code. */
INLINE uint32_t meaning(int symbol, bool dc, int length)
{
    int run = dc ? 0 : symbol >> 4, size = symbol & 15;
    if (size == 0 && !dc && run < 15)
        run = END;
    return (uint32_t)(length + size) | (uint32_t)run << 8 | (uint32_t)(63 - size) << 16 | (uint32_t)length << 24;
}

AVX2 static bool build(Huffman *table, const uint8_t *counts, bool dc)
{
    int32_t code = 0;
    int place = 0;
    memset(table, 0, sizeof *table);
    for (int length = 1; length <= 16; length++, code <<= 1) {
        int count = counts[length - 1];
        if (count && code + count >= 1 << length) /* no code is all ones */
            return false;
        if (place + count > 256)
            return false;
        table->place[length] = place - code;
        for (int i = 0; i < count; i++, code++, place++) {
            int symbol = table->symbols[place] = counts[16 + place];
            if ((symbol & 15) > (dc ? 11 : 10) || (dc && symbol > 11))
                return false;
            for (int rest = 0; length <= LOOK && rest < 1 << (LOOK - length); rest++)
                table->looks[(code << (LOOK - length)) + rest] = meaning(symbol, dc, length);
        }
        table->last[length] = count ? code - 1 : -1;
    }
    return true;
}

/* Many files share their tables, so each thread keeps the last ones. */
static const Huffman *table_of(const uint8_t *counts, int symbols, bool dc, int slot)
{
    static _Thread_local struct {
        bool sound;
        uint8_t key[16 + 256];
        Huffman table;
    } kept[4];
    int bytes = 16 + symbols;
    if (!kept[slot].sound || memcmp(kept[slot].key, counts, (size_t)bytes)) {
        memcpy(kept[slot].key, counts, (size_t)bytes);
        kept[slot].sound = build(&kept[slot].table, kept[slot].key, dc);
    }
    return kept[slot].sound ? &kept[slot].table : NULL;
}

typedef struct {
    const uint8_t *at;
    uint64_t bits; /* the next bit is the highest */
    int count;     /* valid bits; lower ones may be set already, and are read again by the next refill */
} Bits;

INLINE void refill(Bits *bits)
{
    uint64_t next;
    memcpy(&next, bits->at, 8);
    bits->bits |= __builtin_bswap64(next) >> bits->count;
    bits->at += (63 - bits->count) >> 3;
    bits->count |= 56;
}

/* The meaning of a code that is longer than LOOK bits. */
AVX2 static __attribute__((noinline)) uint32_t long_look(const Huffman *table, bool dc, uint64_t bits)
{
    for (int length = LOOK + 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (64 - length));
        if (code <= table->last[length])
            return meaning(table->symbols[table->place[length] + code], dc, length);
    }
    return NONE << 8;
}

/* The run before the next value, and that value. */
INLINE uint32_t next_value(Bits *bits, const Huffman *table, bool dc, int64_t *value)
{
    /* The last code and value took at most 27 of the 56 bits of the last refill. Enough are left for a look-up, so the
       load in refill() is off the critical path. */
    uint32_t look = table->looks[bits->bits >> (64 - LOOK)];
    if (__builtin_expect(!look, 0))
        look = long_look(table, dc, bits->bits);
    refill(bits);
    /* T.81, F.2.2.1: a value whose first bit is 0 is negative, with inverted bits. */
    uint64_t behind = bits->bits << (look >> 24 & 63);
    int64_t sign = ~((int64_t)behind >> 63);
    *value = ((int64_t)((behind ^ (uint64_t)sign) >> 1 >> (look >> 16 & 63)) ^ sign) - sign;
    bits->bits <<= look & 63;
    bits->count -= look & 63;
    return look >> 8 & 0xFF;
}

typedef enum { DAMAGED, FLAT, DETAILED } Kind;

/* Read one block of coefficients, not dequantized, in natural order. FLAT: only the DC coefficient is not zero. */
INLINE Kind read_block(Bits *bits, const Huffman *dc, const Huffman *ac, int16_t *block, uint32_t *predicted)
{
    memset(block, 0, 64 * sizeof *block);
    int64_t value;
    if (next_value(bits, dc, true, &value))
        return DAMAGED;
    *predicted += (uint32_t)value;
    block[0] = (int16_t)*predicted;
    int k = 1;
    do {
        k += next_value(bits, ac, false, &value);
        block[NATURAL[k++]] = (int16_t)value;
    } while (k < 64);
    if (k > 64 && k <= END)
        return DAMAGED;
    return k == 1 + END + 1 ? FLAT : DETAILED;
}

/* ---- headers ---- */

typedef struct {
    int h, v, quant, dc, ac; /* sampling factors; table numbers */
} Component;

typedef struct {
    const uint8_t *data, *end, *scan;
    int64_t height, width;
    int count; /* components: 1 or 3 */
    Component components[3];
    int h, v; /* luma's sampling factors: luma samples per chroma sample */
    int64_t rows, columns, interval; /* in MCUs; interval: MCUs between restarts, 0 for none */
    const uint8_t *tiles;            /* the tile index: 16 bits each, big-endian; NULL if there is none */
    int64_t tile_bytes;
    uint16_t quants[4][64]; /* in natural order */
    const uint8_t *huffmans[2][4]; /* counts, then symbols */
    int symbols[2][4];
    unsigned has_quant;
} Image;

static int u16(const uint8_t *at) { return at[0] << 8 | at[1]; }

static bool parse_quants(Image *image, const uint8_t *at, const uint8_t *end)
{
    for (; at < end; at += 65) {
        int number = *at;
        if (number > 3 || end - at < 65) /* baseline has 8-bit tables only */
            return false;
        for (int i = 0; i < 64; i++)
            image->quants[number][NATURAL[i]] = at[1 + i];
        image->has_quant |= 1u << number;
    }
    return true;
}

static bool parse_huffmans(Image *image, const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        if (end - at < 17 || (*at & 0xEF) > 3)
            return false;
        int symbols = 0;
        for (int i = 0; i < 16; i++)
            symbols += at[1 + i];
        if (symbols > 256 || end - at - 17 < symbols)
            return false;
        image->huffmans[*at >> 4][*at & 3] = at + 1;
        image->symbols[*at >> 4][*at & 3] = symbols;
        at += 17 + symbols;
    }
    return true;
}

static bool parse_frame(Image *image, const uint8_t *at, const uint8_t *end)
{
    if (image->count || end - at < 9 || at[0] != 8 || (at[5] != 1 && at[5] != 3) || end - at != 6 + 3 * at[5])
        return false;
    image->height = u16(at + 1);
    image->width = u16(at + 3);
    image->count = at[5];
    for (int c = 0; c < image->count; c++) {
        Component *component = &image->components[c];
        int factors = at[7 + 3 * c];
        component->h = factors >> 4;
        component->v = factors & 15;
        component->quant = at[8 + 3 * c];
        if (component->quant > 3)
            return false;
    }
    const Component *luma = image->components;
    if (image->count == 1) {
        if (luma->h != 1 || luma->v != 1) /* meaningless for one component */
            return false;
    } else if (luma[1].h != 1 || luma[1].v != 1 || luma[2].h != 1 || luma[2].v != 1)
        return false;
    image->h = luma->h;
    image->v = luma->v;
    if (image->h < 1 || image->h > 2 || image->v < 1 || image->v > 2)
        return false;
    if (!image->height || !image->width || image->height > MAX_SIDE || image->width > MAX_SIDE)
        return false;
    image->rows = (image->height + 8 * image->v - 1) / (8 * image->v);
    image->columns = (image->width + 8 * image->h - 1) / (8 * image->h);
    return image->h == 1 || image->width > 4; /* libjpeg does not interpolate chroma of 2 samples or fewer */
}

static bool parse_scan(Image *image, const uint8_t *frame, const uint8_t *at, const uint8_t *end)
{
    int count = image->count;
    if (!count || end - at != 4 + 2 * count || at[0] != count || memcmp(end - 3, "\0\x3f\0", 3))
        return false;
    for (int c = 0; c < count; c++) {
        Component *component = &image->components[c];
        int id = at[1 + 2 * c], tables = at[2 + 2 * c];
        component->dc = tables >> 4;
        component->ac = tables & 15;
        if (id != frame[6 + 3 * c] || component->dc > 3 || component->ac > 3)
            return false;
        for (int other = 0; other < c; other++)
            if (frame[6 + 3 * other] == id)
                return false;
        if (!(image->has_quant >> component->quant & 1))
            return false;
        if (!image->huffmans[0][component->dc] || !image->huffmans[1][component->ac])
            return false;
    }
    return true;
}

/* Parse all segments up to the first scan. False unless it is one baseline scan of grey or YCbCr. */
static bool parse(Image *image)
{
    static const uint8_t TAG[9] = {'p', 'r', 'e', 's', 'i', 'z', 'e', 0, 1};
    const uint8_t *at = image->data + 2, *frame = NULL;
    bool jfif = false, other_colors = false;
    int parts = 0, parts_due = 0; /* of an ICC profile */
    if (image->end - image->data < 4 || u16(image->data) != 0xFFD8)
        return false;
    while (image->end - at >= 4 && at[0] == 0xFF) {
        int marker = at[1], length = u16(at + 2);
        const uint8_t *payload = at + 4, *end = at + 2 + length;
        if (length < 2 || image->end - at < 2 + length)
            return false;
        bool sound = true;
        if (marker == 0xDB)
            sound = parse_quants(image, payload, end);
        else if (marker == 0xC4)
            sound = parse_huffmans(image, payload, end);
        else if (marker == 0xC0)
            sound = parse_frame(image, frame = payload, end);
        else if (marker == 0xDD && length == 4)
            image->interval = u16(payload);
        else if (marker == 0xE0 && length >= 16 && !memcmp(payload, "JFIF", 5)) {
            jfif = true;
            sound = payload[5] == 1; /* major version */
        } else if (marker == 0xE2 && length >= 16 && !memcmp(payload, "ICC_PROFILE", 12)) {
            sound = length > 16 && payload[12] == ++parts && (parts == 1 || payload[13] == parts_due);
            parts_due = payload[13];
        } else if (marker == 0xEE)
            other_colors |= length >= 14 && !memcmp(payload, "Adobe", 5) && payload[11] != 1;
        else if (marker == 0xE9 && length >= 11 && !memcmp(payload, TAG, 9)) {
            sound = !image->tiles;
            image->tiles = payload + 9;
            image->tile_bytes = end - image->tiles;
        } else if (marker == 0xDA) {
            image->scan = end;
            if (parts != parts_due || (image->tiles && image->tiles + image->tile_bytes != at))
                return false;
            if (frame && image->count == 3)
                other_colors |= frame[6] == 'R' && frame[9] == 'G' && frame[12] == 'B';
            return frame && parse_scan(image, frame, payload, end) && (image->count == 1 || jfif || !other_colors);
        } else
            sound = marker == 0xFE || (marker >= 0xE0 && marker <= 0xEF);
        if (!sound)
            return false;
        at = end;
    }
    return false;
}

/* ---- inverse DCT: two blocks at a time, one in each half of the registers ---- */

#define PAIR(a, b) _mm256_set1_epi32((int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))

typedef struct {
    __m256i lo, hi; /* 32 bits: the lower and the upper four lanes of each half */
} Wide;

INLINE Wide rotated(__m256i lo, __m256i hi, __m256i factors)
{
    return (Wide){_mm256_madd_epi16(lo, factors), _mm256_madd_epi16(hi, factors)};
}

INLINE Wide plus(Wide a, Wide b) { return (Wide){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
INLINE Wide minus(Wide a, Wide b) { return (Wide){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }

INLINE Wide shifted(__m256i x) /* x << 13 */
{
    __m256i zero = _mm256_setzero_si256();
    return (Wide){_mm256_srai_epi32(_mm256_unpacklo_epi16(zero, x), 3),
                  _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, x), 3)};
}

INLINE __m256i descaled(Wide x, int bits)
{
    __m256i half = _mm256_set1_epi32(1 << (bits - 1));
    return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(x.lo, half), bits),
                              _mm256_srai_epi32(_mm256_add_epi32(x.hi, half), bits));
}

/* One pass of the Loeffler-Ligtenberg-Moschytz algorithm with 13 fractional bits, down the lanes. */
INLINE void idct_pass(__m256i x[8], int bits)
{
    __m256i lo = _mm256_unpacklo_epi16(x[2], x[6]), hi = _mm256_unpackhi_epi16(x[2], x[6]);
    Wide e3 = rotated(lo, hi, PAIR(4433 + 6270, 4433)), e2 = rotated(lo, hi, PAIR(4433, 4433 - 15137));
    Wide e0 = shifted(_mm256_add_epi16(x[0], x[4])), e1 = shifted(_mm256_sub_epi16(x[0], x[4]));
    Wide even[4] = {plus(e0, e3), plus(e1, e2), minus(e1, e2), minus(e0, e3)};

    __m256i s3 = _mm256_add_epi16(x[7], x[3]), s4 = _mm256_add_epi16(x[5], x[1]);
    lo = _mm256_unpacklo_epi16(s3, s4), hi = _mm256_unpackhi_epi16(s3, s4);
    Wide z3 = rotated(lo, hi, PAIR(9633 - 16069, 9633)), z4 = rotated(lo, hi, PAIR(9633, 9633 - 3196));
    lo = _mm256_unpacklo_epi16(x[7], x[1]), hi = _mm256_unpackhi_epi16(x[7], x[1]);
    Wide o0 = plus(rotated(lo, hi, PAIR(2446 - 7373, -7373)), z3);
    Wide o3 = plus(rotated(lo, hi, PAIR(-7373, 12299 - 7373)), z4);
    lo = _mm256_unpacklo_epi16(x[5], x[3]), hi = _mm256_unpackhi_epi16(x[5], x[3]);
    Wide o1 = plus(rotated(lo, hi, PAIR(16819 - 20995, -20995)), z4);
    Wide o2 = plus(rotated(lo, hi, PAIR(-20995, 25172 - 20995)), z3);
    Wide odd[4] = {o3, o2, o1, o0};
    for (int i = 0; i < 4; i++) {
        x[i] = descaled(plus(even[i], odd[i]), bits);
        x[7 - i] = descaled(minus(even[i], odd[i]), bits);
    }
}

INLINE void transpose(__m256i x[8])
{
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            b[4 * i + 2 * j] = _mm256_unpacklo_epi32(a[4 * i + j], a[4 * i + 2 + j]);
            b[4 * i + 2 * j + 1] = _mm256_unpackhi_epi32(a[4 * i + j], a[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        x[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
        x[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
    }
}

/* False for values that occur in damaged files only, where libjpeg-turbo's shortcut for DC-only columns overflows. */
AVX2 static bool idct(const int16_t *first, const int16_t *second, const int16_t *quant, uint8_t *to_first,
                      uint8_t *to_second, int64_t stride)
{
    __m256i x[8];
    for (int i = 0; i < 8; i++) {
        __m256i both = _mm256_castsi128_si256(_mm_load_si128((const __m128i *)(first + 8 * i)));
        both = _mm256_inserti128_si256(both, _mm_load_si128((const __m128i *)(second + 8 * i)), 1);
        __m128i factors = _mm_loadu_si128((const __m128i *)(quant + 8 * i));
        x[i] = _mm256_mullo_epi16(both, _mm256_broadcastsi128_si256(factors));
    }
    __m256i kept = _mm256_cmpeq_epi16(x[0], _mm256_srai_epi16(_mm256_slli_epi16(x[0], 2), 2));
    idct_pass(x, 11);
    transpose(x);
    idct_pass(x, 18);
    transpose(x);
    for (int i = 0; i < 8; i += 2) {
        __m256i rows = _mm256_packs_epi16(x[i], x[i + 1]);
        rows = _mm256_xor_si256(rows, _mm256_set1_epi8((char)0x80));
        __m128i a = _mm256_castsi256_si128(rows), b = _mm256_extracti128_si256(rows, 1);
        _mm_storel_epi64((__m128i *)(to_first + i * stride), a);
        _mm_storeh_pd((double *)(to_first + (i + 1) * stride), _mm_castsi128_pd(a));
        _mm_storel_epi64((__m128i *)(to_second + i * stride), b);
        _mm_storeh_pd((double *)(to_second + (i + 1) * stride), _mm_castsi128_pd(b));
    }
    return _mm256_movemask_epi8(kept) == -1;
}

/* The same for two FLAT blocks. */
AVX2 static bool flatten(const int16_t *first, const int16_t *second, const int16_t *quant, uint8_t *to_first,
                         uint8_t *to_second, int64_t stride)
{
    int means[2] = {(int16_t)(*first * *quant), (int16_t)(*second * *quant)};
    int a = ((means[0] + 4) >> 3) + 128, b = ((means[1] + 4) >> 3) + 128;
    for (int y = 0; y < 8; y++) {
        memset(to_first + y * stride, a < 0 ? 0 : a > 255 ? 255 : a, 8);
        memset(to_second + y * stride, b < 0 ? 0 : b > 255 ? 255 : b, 8);
    }
    return abs(means[0]) < 8192 && abs(means[1]) < 8192;
}

/* ---- decoding one image ---- */

typedef struct {
    int64_t top, left, bottom, right;
} Box;

typedef struct {
    const Image *image;
    Box box;
    int channels; /* 1: grey, 3: RGB, 4: BGRX */
    uint8_t *out;
    int64_t first_column, columns; /* the MCUs of each row that are decoded */
    const Huffman *dc[3], *ac[3];
    int16_t quants[3][64];
    int16_t *blocks[3]; /* one row of MCUs: row by row of blocks, from left to right */
    uint8_t *kinds[3];  /* for each of them what read_block returned */
    int64_t blocks_in_row[3];
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

AVX2 static bool read_mcu(Work *work, int64_t column)
{
    const Image *image = work->image;
    Bits bits = work->bits;
    for (int c = 0; c < image->count; c++) {
        const Component *component = &image->components[c];
        for (int v = 0; v < component->v; v++)
            for (int h = 0; h < component->h; h++) {
                int64_t at = v * work->blocks_in_row[c] + column * component->h + h;
                int16_t *block = work->blocks[c] + 64 * at;
                Kind kind = read_block(&bits, work->dc[c], work->ac[c], block, &work->predicted[c]);
                if (kind == DAMAGED)
                    return false;
                work->kinds[c][at] = (uint8_t)kind;
            }
    }
    work->bits = bits;
    return bits.at <= work->clean + work->clean_bytes + 8;
}

/* Copy a restart interval, up to its marker or to `end`, without stuffed bytes. Returns where it ended. */
AVX2 static const uint8_t *begin_interval(Work *work, const uint8_t *at, const uint8_t *end)
{
    uint8_t *to = work->clean;
    while (at < end) {
        if (end - at >= 32) {
            __m256i some = _mm256_loadu_si256((const __m256i *)at);
            _mm256_storeu_si256((__m256i *)to, some);
            unsigned found = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(some, _mm256_set1_epi8((char)0xFF)));
            int before = found ? __builtin_ctz(found) : 32;
            at += before;
            to += before;
            if (!found)
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

/* True if exactly the bytes of the interval were consumed. */
static bool ends_interval(const Work *work)
{
    int64_t left = 8 * (work->clean_bytes - (work->bits.at - work->clean)) + work->bits.count;
    return left >= 0 && left < 8;
}

AVX2 static bool transform_row(Work *work, int64_t row)
{
    const Image *image = work->image;
    for (int c = 0; c < (work->channels == 1 ? 1 : image->count); c++) {
        int v = image->components[c].v;
        int64_t count = work->blocks_in_row[c], stride = work->strides[c];
        for (int i = 0; i < v; i++) {
            const int16_t *blocks = work->blocks[c] + 64 * i * count;
            const uint8_t *kinds = work->kinds[c] + i * count;
            uint8_t *to = work->planes[c] + (8 * (row * v + i) & (16 * v - 1)) * stride;
            for (int64_t at = 0; at < count; at += 2) {
                int64_t next = at + 1 < count ? at + 1 : at;
                const int16_t *first = blocks + 64 * at, *second = blocks + 64 * next;
                const int16_t *quant = work->quants[c];
                bool flat = kinds[at] == FLAT && kinds[next] == FLAT;
                if (!(flat ? flatten : idct)(first, second, quant, to + 8 * at, to + 8 * next, stride))
                    return false;
            }
        }
    }
    return true;
}

/* ---- colours ---- */

/* 16 pixels of full-range BT.601, in 16-bit arithmetic as in libjpeg-turbo's jdcolext. */
INLINE void color16(const uint8_t *y8, const uint8_t *cb8, const uint8_t *cr8, int channels, uint8_t *out)
{
    const __m256i center = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1);
    __m256i y = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)y8));
    __m256i cb = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cb8)), center);
    __m256i cr = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cr8)), center);
    __m256i cb2 = _mm256_add_epi16(cb, cb), cr2 = _mm256_add_epi16(cr, cr);
    __m256i r = _mm256_mulhi_epi16(cr2, _mm256_set1_epi16(26345));  /* 0.402 */
    __m256i b = _mm256_mulhi_epi16(cb2, _mm256_set1_epi16(-14942)); /* -0.228 */
    r = _mm256_add_epi16(_mm256_add_epi16(y, cr), _mm256_srai_epi16(_mm256_add_epi16(r, one), 1));
    b = _mm256_add_epi16(_mm256_add_epi16(y, cb2), _mm256_srai_epi16(_mm256_add_epi16(b, one), 1));
    const __m256i factors = PAIR(-22554, 18734), half = _mm256_set1_epi32(1 << 15); /* -0.34414, 0.28586 */
    __m256i lo = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
    __m256i hi = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
    __m256i g = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(lo, half), 16),
                                   _mm256_srai_epi32(_mm256_add_epi32(hi, half), 16));
    g = _mm256_sub_epi16(_mm256_add_epi16(y, g), cr);

    __m256i first = channels == 4 ? _mm256_packus_epi16(b, r) : _mm256_packus_epi16(r, b);
    __m256i second = _mm256_packus_epi16(g, _mm256_set1_epi16(255));
    __m256i low = _mm256_unpacklo_epi8(first, second), high = _mm256_unpackhi_epi8(first, second);
    __m256i even = _mm256_unpacklo_epi16(low, high), odd = _mm256_unpackhi_epi16(low, high);
    if (channels == 4) {
        _mm256_storeu_si256((__m256i *)out, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)(out + 32), _mm256_permute2x128_si256(even, odd, 0x31));
        return;
    }
    const __m256i three = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    even = _mm256_shuffle_epi8(even, three);
    odd = _mm256_shuffle_epi8(odd, three);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(even));
    _mm_storeu_si128((__m128i *)(out + 12), _mm256_castsi256_si128(odd));
    _mm_storeu_si128((__m128i *)(out + 24), _mm256_extracti128_si256(even, 1));
    _mm_storeu_si128((__m128i *)(out + 36), _mm256_extracti128_si256(odd, 1));
}

/* A row of chroma for the columns of the box, interpolated on each axis on which it is subsampled. */
AVX2 static const uint8_t *chroma_row(Work *work, int c, int64_t y)
{
    const Image *image = work->image;
    const uint8_t *plane = work->planes[c];
    int64_t stride = work->strides[c], origin = 8 * work->first_column;
    int64_t last_row = (image->height - 1) / image->v, last = (image->width - 1) / image->h;
    int64_t near = y / image->v, far = image->v == 1 ? near : y & 1 ? near + 1 : near - 1;
    far = far < 0 ? 0 : far > last_row ? last_row : far;
    const uint8_t *a = plane + (near & 15) * stride - origin, *b = plane + (far & 15) * stride - origin;
    int64_t left = work->box.left, right = work->box.right;
    uint8_t *wide = work->chroma[c - 1];
    if (image->h == 1 && image->v == 1)
        return a + left;
    if (image->h == 1) {
        int bias = y & 1 ? 2 : 1;
        for (int64_t x = left; x < right; x++)
            wide[x - left] = (uint8_t)((3 * a[x] + b[x] + bias) >> 2);
        return wide;
    }
    int64_t from = left / 2, to = (right + 1) / 2; /* in samples; sums has one more at each end */
    int16_t *sums = work->sums + PADDING - from;
    const __m256i three = _mm256_set1_epi16(3);
    for (int64_t x = from - 1; x <= to; x += 16) {
        __m256i sum = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(a + x)));
        if (image->v == 2) {
            __m256i other = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(b + x)));
            sum = _mm256_add_epi16(_mm256_mullo_epi16(sum, three), other);
        }
        _mm256_storeu_si256((__m256i *)(sums + x), sum);
    }
    if (from == 0)
        sums[-1] = sums[0];
    if (to > last)
        sums[to] = sums[last];
    const __m256i even = _mm256_set1_epi16(image->v == 2 ? 8 : 1), odd = _mm256_set1_epi16(image->v == 2 ? 7 : 2);
    for (int64_t x = from; x < to; x += 16) {
        __m256i sum = _mm256_mullo_epi16(_mm256_loadu_si256((const __m256i *)(sums + x)), three);
        __m256i before = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(sums + x - 1)), even);
        __m256i behind = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(sums + x + 1)), odd);
        before = _mm256_srli_epi16(_mm256_add_epi16(sum, before), image->v == 2 ? 4 : 2);
        behind = _mm256_srli_epi16(_mm256_add_epi16(sum, behind), image->v == 2 ? 4 : 2);
        __m256i both = _mm256_or_si256(before, _mm256_slli_epi16(behind, 8));
        _mm256_storeu_si256((__m256i *)(wide + 2 * (x - from)), both);
    }
    return wide + (left & 1);
}

AVX2 static void write_row(Work *work, int64_t y)
{
    static const uint8_t GREY[PADDING] = {[0 ... PADDING - 1] = 128};
    const Image *image = work->image;
    int64_t width = work->box.right - work->box.left, row_bytes = width * work->channels;
    const uint8_t *luma = work->planes[0] + (y & (16 * image->v - 1)) * work->strides[0];
    luma += work->box.left - 8 * image->h * work->first_column;
    uint8_t *out = work->out + (y - work->box.top) * row_bytes;
    if (work->channels == 1) {
        memcpy(out, luma, (size_t)width);
        return;
    }
    bool grey = image->count == 1;
    const uint8_t *cb = grey ? GREY : chroma_row(work, 1, y), *cr = grey ? GREY : chroma_row(work, 2, y);
    int64_t step = grey ? 0 : 1, x = 0;
    /* color16 writes up to four bytes past its 16 pixels; near the end of the row they would not be ours. */
    for (; x + 16 + 2 <= width; x += 16)
        color16(luma + x, cb + step * x, cr + step * x, work->channels, out + work->channels * x);
    for (; x < width; x += 16) {
        uint8_t last[PADDING];
        color16(luma + x, cb + step * x, cr + step * x, work->channels, last);
        memcpy(out + work->channels * x, last, (size_t)((width - x < 16 ? width - x : 16) * work->channels));
    }
}

/* Transform and write a row of MCUs that is read. Its last row of pixels waits for the chroma of the next row. */
AVX2 static bool finish_row(Work *work, int64_t row, bool last)
{
    int64_t height = 8 * work->image->v, margin = work->image->v - 1;
    bool is_wanted = (row + 1) * height > work->box.top - margin && row * height < work->box.bottom + margin;
    if (is_wanted && !transform_row(work, row))
        return false;
    int64_t until = last ? work->box.bottom : (row + 1) * height - margin;
    for (; work->y < until && work->y < work->box.bottom; work->y++)
        write_row(work, work->y);
    return true;
}

/* ---- from the file to the box ---- */

typedef struct {
    int64_t in_row, top, left, bottom, right; /* in tiles */
} Tiles;

/* The tiles under a box and, where chroma is interpolated, under the pixels next to it. */
static Tiles tiles_under(const Image *image, Box box)
{
    int64_t height = 8 * image->v, width = 8 * image->h * image->interval, in_row = image->columns / image->interval;
    int64_t bottom = (box.bottom + image->v - 2) / height + 1, right = (box.right + image->h - 2) / width + 1;
    return (Tiles){
        .in_row = in_row,
        .top = box.top > 0 ? (box.top - (image->v - 1)) / height : 0,
        .left = box.left > 0 ? (box.left - (image->h - 1)) / width : 0,
        .bottom = bottom < image->rows ? bottom : image->rows,
        .right = right < in_row ? right : in_row,
    };
}

/* The end of a tile, or NULL if the index is wrong: it points out of the scan, or to where there is no marker. */
static const uint8_t *tile_end(const Image *image, int64_t tile, const uint8_t *at)
{
    int64_t length = u16(image->tiles + 2 * tile);
    int marker = 2 * (tile + 1) == image->tile_bytes ? 0xD9 : 0xD0 + (int)(tile & 7);
    if (length < 2 || length > image->end - at || u16(at + length - 2) != (0xFF00 | marker))
        return NULL;
    return at + length;
}

/* With a tile index: only the tiles under the box. */
AVX2 static bool decode_tiles(Work *work, Tiles wanted)
{
    const Image *image = work->image;
    const uint8_t *at = image->scan;
    int64_t tile = 0;
    for (; tile < wanted.top * wanted.in_row; tile++)
        if (!(at = tile_end(image, tile, at)))
            return false;
    for (int64_t row = wanted.top; row < wanted.bottom; row++) {
        for (int64_t column = 0; column < wanted.in_row; column++, tile++) {
            const uint8_t *begin = at;
            if (!(at = tile_end(image, tile, begin)))
                return false;
            if (column < wanted.left || column >= wanted.right)
                continue;
            if (begin_interval(work, begin, at - 2) != at - 2)
                return false;
            for (int64_t i = 0; i < image->interval; i++)
                if (!read_mcu(work, (column - wanted.left) * image->interval + i))
                    return false;
            if (!ends_interval(work))
                return false;
        }
        if (!finish_row(work, row, row + 1 == wanted.bottom))
            return false;
    }
    return true;
}

/* Without an index: the whole scan. */
AVX2 static bool decode_scan(Work *work)
{
    const Image *image = work->image;
    int64_t left = 0, number = 0;
    const uint8_t *at = image->scan;
    for (int64_t row = 0; row < image->rows; row++) {
        for (int64_t column = 0; column < image->columns; column++) {
            if (left == 0) {
                if (number > 0) {
                    if (!ends_interval(work) || image->end - at < 2 || at[1] != 0xD0 + ((number - 1) & 7))
                        return false;
                    at += 2;
                }
                at = begin_interval(work, at, image->end);
                left = image->interval ? image->interval : image->rows * image->columns;
                number++;
            }
            if (!read_mcu(work, column))
                return false;
            left--;
        }
        if (!finish_row(work, row, row + 1 == image->rows))
            return false;
    }
    return ends_interval(work) && image->end - at >= 2 && at[1] == 0xD9;
}

/* True if the index has as many tiles as the scan, and their lengths add up to its length. */
static bool has_sound_index(const Image *image)
{
    int64_t tiles = image->tile_bytes / 2, bytes = 0;
    if (!image->interval || image->columns % image->interval || (image->interval == 1 && image->columns > 1))
        return false;
    if (image->tile_bytes % 2 || tiles != image->rows * (image->columns / image->interval))
        return false;
    for (int64_t tile = 0; tile < tiles; tile++)
        bytes += u16(image->tiles + 2 * tile);
    return bytes == image->end - image->scan;
}

static size_t aligned(int64_t bytes) { return (size_t)(bytes + 2 * PADDING - 1) / PADDING * PADDING; }

/* Allocate the buffers of `work` in one block, which is returned for free(). */
static uint8_t *prepare(Work *work)
{
    const Image *image = work->image;
    size_t sizes[14], count = 0, total = PADDING;
    for (int c = 0; c < image->count; c++) {
        const Component *component = &image->components[c];
        int64_t in_row = work->blocks_in_row[c] = work->columns * component->h;
        work->strides[c] = (int64_t)aligned(8 * in_row);
        sizes[count++] = aligned(in_row * component->v * 64 * (int64_t)sizeof(int16_t));
        sizes[count++] = aligned(in_row * component->v);
        sizes[count++] = aligned(16 * component->v * work->strides[c]);
    }
    int64_t width = 8 * image->h * work->columns;
    sizes[count++] = aligned(2 * width + 4 * PADDING);
    sizes[count++] = aligned(width + 2);
    sizes[count++] = aligned(width + 2);
    sizes[count++] = aligned(image->tiles ? 0xFFFF : image->end - image->scan) + SLACK;
    for (size_t i = 0; i < count; i++)
        total += sizes[i];
    uint8_t *memory = malloc(total);
    if (!memory)
        return NULL;
    uint8_t *at = memory + (PADDING - (uintptr_t)memory % PADDING);
    count = 0;
    for (int c = 0; c < image->count; c++) {
        work->blocks[c] = (int16_t *)at, at += sizes[count++];
        work->kinds[c] = at, at += sizes[count++];
        work->planes[c] = at, at += sizes[count++];
    }
    work->sums = (int16_t *)at, at += sizes[count++];
    work->chroma[0] = at, at += sizes[count++];
    work->chroma[1] = at, at += sizes[count++];
    work->clean = at;
    return memory;
}

static bool decode_box(Image *image, int64_t height, int64_t width, Box box, int channels, uint8_t *out)
{
    if (!parse(image) || (image->tiles && !has_sound_index(image)))
        return false;
    if (image->height != height || image->width != width)
        return false;
    Work work = {
        .image = image, .box = box, .channels = channels, .out = out, .columns = image->columns, .y = box.top};
    for (int c = 0; c < image->count; c++) {
        const Component *component = &image->components[c];
        int dc = component->dc, ac = component->ac, chroma = c > 0;
        if (c == 2 && (dc != image->components[1].dc || ac != image->components[1].ac))
            return false; /* no encoder writes such files */
        work.dc[c] = table_of(image->huffmans[0][dc], image->symbols[0][dc], true, 2 * chroma);
        work.ac[c] = table_of(image->huffmans[1][ac], image->symbols[1][ac], false, 2 * chroma + 1);
        if (!work.dc[c] || !work.ac[c])
            return false;
        for (int i = 0; i < 64; i++)
            work.quants[c][i] = (int16_t)image->quants[component->quant][i];
    }
    Tiles wanted = {0};
    if (image->tiles) {
        wanted = tiles_under(image, box);
        work.first_column = wanted.left * image->interval;
        work.columns = (wanted.right - wanted.left) * image->interval;
    }
    uint8_t *memory = prepare(&work);
    if (!memory)
        return false;
    bool done = image->tiles ? decode_tiles(&work, wanted) : decode_scan(&work);
    free(memory);
    return done;
}

/* Write the lengths of `tiles` tiles, from `at` to the end, to `lengths` in the format of the index. False if there
   are fewer or more, one is longer than 65,535 bytes, or one ends with the wrong marker. */
AVX2 static bool measure_tiles(const uint8_t *at, const uint8_t *end, int64_t tiles, uint8_t *lengths)
{
    for (int64_t tile = 0; tile < tiles; tile++) {
        const uint8_t *begin = at;
        while ((at = memchr(at, 0xFF, (size_t)(end - at))) && end - at >= 2 && at[1] == 0)
            at += 2;
        int marker = tile + 1 == tiles ? 0xD9 : 0xD0 + (int)(tile & 7);
        if (!at || end - at < 2 || at[1] != marker || (at += 2) - begin > 0xFFFF)
            return false;
        lengths[2 * tile] = (uint8_t)((at - begin) >> 8);
        lengths[2 * tile + 1] = (uint8_t)(at - begin);
    }
    return at == end;
}

/* ---- the module ---- */

#ifndef WITHOUT_PYTHON

static PyObject *decode(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer data, out;
    int channels, height, width, top, left, box_height, box_width;
    if (!PyArg_ParseTuple(arguments, "y*w*i(ii)(iiii)", &data, &out, &channels, &height, &width, &top, &left,
                          &box_height, &box_width))
        return NULL;
    PyObject *result = NULL;
    Box box = {top, left, (int64_t)top + box_height, (int64_t)left + box_width};
    if (height > 0xFFFF || width > 0xFFFF)
        PyErr_SetString(PyExc_ValueError, "no JPEG has such a shape");
    else if (top < 0 || left < 0 || box_height < 1 || box_width < 1 || box.bottom > height || box.right > width)
        PyErr_SetString(PyExc_ValueError, "the box does not lie in the image");
    else if (channels != 1 && channels != 3 && channels != 4)
        PyErr_SetString(PyExc_ValueError, "channels: expected 1, 3 or 4");
    else if (out.len < (int64_t)box_height * box_width * channels)
        PyErr_SetString(PyExc_ValueError, "out is too small");
    else {
        Image image = {.data = data.buf, .end = (const uint8_t *)data.buf + data.len};
        bool done;
        Py_BEGIN_ALLOW_THREADS
        done = decode_box(&image, height, width, box, channels, out.buf);
        Py_END_ALLOW_THREADS
        result = PyBool_FromLong(done);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return result;
}

static PyObject *tile_lengths(PyObject *self, PyObject *arguments)
{
    (void)self;
    Py_buffer data;
    Py_ssize_t scan, tiles;
    if (!PyArg_ParseTuple(arguments, "y*nn", &data, &scan, &tiles))
        return NULL;
    PyObject *result = NULL;
    if (scan < 0 || scan > data.len || tiles < 1 || tiles > data.len)
        PyErr_SetString(PyExc_ValueError, "scan or tiles does not fit data");
    else if ((result = PyBytes_FromStringAndSize(NULL, 2 * tiles))) {
        const uint8_t *bytes = data.buf;
        if (!measure_tiles(bytes + scan, bytes + data.len, tiles, (uint8_t *)PyBytes_AsString(result))) {
            Py_DECREF(result);
            result = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, NULL},
    {"tile_lengths", tile_lengths, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int check_processor(PyObject *module)
{
    (void)module;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
        return 0;
    PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
    return -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, check_processor}, {0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_jpeg_decoder", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__jpeg_decoder(void) { return PyModuleDef_Init(&module); }

#endif
