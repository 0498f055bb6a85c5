/* Recoding of the same coefficients in restart intervals of another length, without a transform. Only DC coefficients
   get new codes, since the first one of an interval is not a difference; all other bits are copied. The codes are those
   of T.81, tables K.3 and K.4, which cover every difference. */

enum {
    DC_CODES = 12,
    MCU_BYTES = 4096 /* more than an MCU of 6 blocks, the padding and a marker take if every byte is stuffed */
};

typedef struct {
    uint16_t code;
    uint8_t length; /* in bits */
} Code;

static const Code DC[2][DC_CODES] = {
    {{0x00, 2}, {0x02, 3}, {0x03, 3}, {0x04, 3}, {0x05, 3}, {0x06, 3}, {0x0E, 4}, {0x1E, 5}, {0x3E, 6}, {0x7E, 7},
     {0xFE, 8}, {0x1FE, 9}},
    {{0x00, 2}, {0x01, 2}, {0x02, 2}, {0x06, 3}, {0x0E, 4}, {0x1E, 5}, {0x3E, 6}, {0x7E, 7}, {0xFE, 8}, {0x1FE, 9},
     {0x3FE, 10}, {0x7FE, 11}},
};

typedef struct {
    uint8_t *at;
    uint64_t bits; /* the last bits written; the lowest `count`, less than 32, are not in memory yet */
    int count;
} Writer;

/* Write the lowest `count` bits of `bits`, at most 32; higher bits must be 0. */
INLINE void write_bits(Writer *writer, uint64_t bits, int count)
{
    writer->bits = writer->bits << count | bits;
    writer->count += count;
    if (writer->count < 32)
        return;
    writer->count -= 32;
    uint32_t word = (uint32_t)(writer->bits >> writer->count), without_ff = ~word;
    if (__builtin_expect(((without_ff - 0x01010101) & word & 0x80808080) == 0, 1)) {
        word = __builtin_bswap32(word);
        memcpy(writer->at, &word, 4);
        writer->at += 4;
        return;
    }
    for (int shift = 24; shift >= 0; shift -= 8)
        if ((*writer->at++ = (uint8_t)(word >> shift)) == 0xFF)
            *writer->at++ = 0;
}

/* End an interval: pad it with ones to a whole byte, and write a marker. */
TARGET static void write_marker(Writer *writer, int marker)
{
    int rest = -writer->count & 7;
    write_bits(writer, (1u << rest) - 1, rest);
    while (writer->count > 0) {
        writer->count -= 8;
        if ((*writer->at++ = (uint8_t)(writer->bits >> writer->count)) == 0xFF)
            *writer->at++ = 0;
    }
    *writer->at++ = 0xFF;
    *writer->at++ = (uint8_t)marker;
}

/* Write a DC code. Return false if baseline JPEG has no code for the difference. */
INLINE bool write_dc(Writer *writer, const Code *codes, int32_t difference)
{
    uint32_t magnitude = (uint32_t)(difference < 0 ? -difference : difference);
    int size = magnitude ? 32 - __builtin_clz(magnitude) : 0;
    if (size >= DC_CODES)
        return false;
    uint32_t value = (uint32_t)(difference - (difference < 0)) & ((1u << size) - 1);
    write_bits(writer, (uint64_t)codes[size].code << size | value, codes[size].length + size);
    return true;
}

/* Return the position of the next bit in the interval. */
INLINE int64_t position(const Work *work) { return 8 * (work->bits.at - work->clean) - work->bits.count; }

/* Copy the bits from `begin` to `end` of the interval. */
INLINE void copy_bits(Writer *writer, const Work *work, int64_t begin, int64_t end)
{
    for (int64_t at = begin; at < end; at += 32) {
        int count = end - at < 32 ? (int)(end - at) : 32;
        uint64_t bits;
        memcpy(&bits, work->clean + (at >> 3), 8);
        bits = __builtin_bswap64(bits) << (at & 7);
        write_bits(writer, bits >> (64 - count), count);
    }
}

/* Recode all MCUs in intervals of `interval`, and write the end marker. */
TARGET static bool recode_scan(Work *work, int64_t interval, Writer *writer, const uint8_t *end)
{
    const Image *image = work->image;
    int64_t mcus = image->rows * image->columns, old_left = 0, old_number = 0;
    uint32_t written[3] = {0};
    const uint8_t *at = image->scan;
    for (int64_t mcu = 0; mcu < mcus; mcu++) {
        if (old_left == 0) {
            if (!(at = next_interval(work, at, old_number++)))
                return false;
            old_left = image->interval ? image->interval : mcus;
        }
        if (mcu > 0 && mcu % interval == 0) {
            write_marker(writer, 0xD0 + (int)((mcu / interval - 1) & 7));
            memset(written, 0, sizeof written);
        }
        if (end - writer->at < MCU_BYTES)
            return false;
        for (int c = 0; c < image->count; c++) {
            const Component *component = &image->components[c];
            for (int i = 0; i < component->h * component->v; i++) {
                int16_t ignored;
                if (!read_dc(&work->bits, work->dc[c], &ignored, &work->predicted[c]))
                    return false;
                if (!write_dc(writer, DC[component->dc > 0], (int32_t)(work->predicted[c] - written[c])))
                    return false;
                written[c] = work->predicted[c];
                int64_t begin = position(work);
                if (!pass_codes(&work->bits, work->ac[c]))
                    return false;
                copy_bits(writer, work, begin, position(work));
            }
        }
        if (work->bits.at > work->clean + work->clean_bytes + 8)
            return false;
        old_left--;
    }
    write_marker(writer, 0xD9);
    return ends_scan(work, at);
}

/* Implements Recoder. */
int64_t RECODE(const uint8_t *data, const uint8_t *end, int64_t interval, uint8_t *out, int64_t out_bytes)
{
    Image parsed = {.data = data, .end = end};
    Work work = {.image = &parsed};
    if (!parse(&parsed) || parsed.tiles || !find_tables(&work))
        return 0;
    uint8_t *memory = malloc(aligned(end - parsed.scan) + SLACK);
    if (!memory)
        return 0;
    work.clean = memory;
    Writer writer = {.at = out};
    bool done = recode_scan(&work, interval, &writer, out + out_bytes);
    free(memory);
    return done ? writer.at - out : 0;
}
