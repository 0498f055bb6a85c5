/* Huffman codes: one look-up gives everything that a code means, and the coefficient follows without a branch. */

enum {
    LOOK = 10 /* bits per table look-up; 9 and 11 are no faster */
};

typedef struct {
    uint32_t looks[1 << LOOK]; /* the meaning of the code in these bits, 0 for a longer code */
    uint32_t skips[1 << LOOK]; /* of all codes that begin and end in these bits, 0 for none */
    bool has_skips;
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

TARGET static bool build(Huffman *table, const uint8_t *counts, bool dc)
{
    int32_t code = 0;
    int place = 0;
    memset(table->looks, 0, sizeof table->looks);
    table->has_skips = false;
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

/* Each entry: bits of the codes with their values; how many coefficients they pass; whether the block then ends. */
TARGET static void build_skips(Huffman *table)
{
    for (uint32_t bits = 0; bits < 1 << LOOK; bits++) {
        uint32_t used = 0, passed = 0, ends = 0;
        while (used < LOOK && passed < 64 && !ends) {
            uint32_t look = table->looks[bits << used & ((1 << LOOK) - 1)], run = look >> 8 & 0xFF;
            if (!look || used + (look >> 24) > LOOK)
                break;
            used += look & 63;
            ends = run == END;
            passed += ends ? 0 : run + 1;
        }
        table->skips[bits] = used | passed << 8 | ends << 16;
    }
    table->has_skips = true;
}

/* Many files share their tables, so each thread keeps the last ones. */
TARGET static const Huffman *table_of(const uint8_t *counts, int symbols, bool dc, int slot, bool skips)
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
    if (kept[slot].sound && skips && !kept[slot].table.has_skips)
        build_skips(&kept[slot].table);
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
TARGET static __attribute__((noinline)) uint32_t long_look(const Huffman *table, bool dc, uint64_t bits)
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

/* As read_block, for the DC coefficient alone. */
INLINE Kind read_mean(Bits *bits, const Huffman *dc, const Huffman *ac, int16_t *mean, uint32_t *predicted)
{
    int64_t value;
    if (next_value(bits, dc, true, &value))
        return DAMAGED;
    *predicted += (uint32_t)value;
    *mean = (int16_t)*predicted;
    int k = 1;
    do {
        uint32_t skip = ac->skips[bits->bits >> (64 - LOOK)], ends = skip >> 16;
        int behind = k + (int)(skip >> 8 & 0xFF);
        /* The last of these codes may belong to the next block. */
        if (__builtin_expect(!skip || behind > 64 - (int)ends, 0)) {
            k += 1 + (int)next_value(bits, ac, false, &value);
            continue;
        }
        refill(bits);
        bits->bits <<= skip & 63;
        bits->count -= skip & 63;
        if (ends)
            return FLAT;
        k = behind;
    } while (k < 64);
    return k > 64 && k <= END ? DAMAGED : FLAT;
}
