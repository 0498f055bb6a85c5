/* The headers of a baseline JPEG. The input may be malicious: each length is checked before it is used. */

#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    NONE = 64,       /* run of an invalid Huffman code: longer than a block */
    END = 128,       /* run that ends a block */
    MAX_SIDE = 65500 /* limit of libjpeg */
};

/* Natural position of each coefficient in zigzag order. Coefficients past the end of a block map to the last one. */
static const uint8_t NATURAL[END + 64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    [64 ... END + 63] = 63,
};

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
    const uint8_t *tiles;            /* the tile index: 16-bit big-endian lengths; NULL if there is none */
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
        if (number > 3 || end - at < 65) /* baseline has only 8-bit tables */
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
        if (luma->h != 1 || luma->v != 1) /* other factors are meaningless for one component */
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
    return true;
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

/* Parse all segments up to the first scan. Return false unless it is one baseline scan of grey or YCbCr. */
static bool parse(Image *image)
{
    static const uint8_t TAG[9] = {'p', 'r', 'e', 's', 'i', 'z', 'e', 0, 1};
    const uint8_t *at = image->data + 2, *frame = NULL;
    bool jfif = false, other_colors = false, has_interval = false;
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
        else if (marker == 0xDD && length == 4) {
            sound = !has_interval;
            has_interval = true;
            image->interval = u16(payload);
        } else if (marker == 0xE0 && length >= 16 && !memcmp(payload, "JFIF", 5)) {
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
