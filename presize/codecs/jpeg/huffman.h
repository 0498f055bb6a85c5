/* Huffman codes: one look-up returns everything that a code means, and also the next code if it is in the same bits. */

enum {
    LOOK = 10 /* bits per table look-up; 9 and 11 are no faster */
};

/* Meaning of a code, and of the next one if both codes and their values fit into LOOK bits. From the lowest bit:

   8 bits   the number of bits of both codes and values
   8 bits   64 minus the number of bits of the first code and its value
   16 bits  a mask with as many ones as the first value has bits
   8 bits   the run before the first value
   8 bits   the number of coefficients from the first value to the last one, inclusive
   16 bits  the second value */
typedef uint64_t Look;

INLINE int first_bits(Look look) { return 64 - (int)(look >> 8 & 0xFF); }
INLINE int first_run(Look look) { return (int)(look >> 32 & 0xFF); }
INLINE int step(Look look) { return (int)(look >> 40 & 0xFF); }
INLINE int16_t second_value(Look look) { return (int16_t)(look >> 48); }

/* Return the first value. A value whose first bit is 0 is negative, with inverted bits (T.81, F.2.2.1). */
INLINE int32_t first_value(Look look, uint64_t bits)
{
    int32_t ones = look >> 16 & 0xFFFF, value = (int32_t)(bits >> (look >> 8 & 63)) & ones;
    return value - (value <= ones >> 1 ? ones : 0);
}

INLINE Look meaning(int symbol, bool dc, int length)
{
    int run = dc ? 0 : symbol >> 4, size = symbol & 15, bits = length + size;
    if (size == 0 && !dc && run < 15)
        run = END;
    uint64_t ones = (1u << size) - 1;
    return (Look)bits | (Look)(64 - bits) << 8 | ones << 16 | (Look)run << 32 | (Look)1 << 40;
}

typedef struct {
    Look looks[1 << LOOK];     /* 0 for a longer code */
    uint32_t skips[1 << LOOK]; /* all codes that begin and end in these bits; 0 for none */
    bool has_skips;
    int32_t last[17];  /* the last code of each length, -1 if there is none */
    int32_t place[17]; /* index into symbols of code 0 of each length */
    uint8_t symbols[256];
} Huffman;

/* Add the second code to each look-up. */
TARGET static void build_pairs(Huffman *table)
{
    for (uint32_t bits = 0; bits < 1 << LOOK; bits++) {
        Look first = table->looks[bits];
        if (!first || first_run(first) == END)
            continue;
        uint64_t behind = (uint64_t)bits << (64 - LOOK) << first_bits(first);
        Look second = table->looks[behind >> (64 - LOOK)];
        int used = first_bits(first) + first_bits(second), run = first_run(second);
        if (!second || used > LOOK)
            continue;
        int32_t value = first_value(second, behind);
        first = (first & 0xFFFFFFFF00) | (Look)used;
        table->looks[bits] = first | (Look)(run + 2) << 40 | (Look)(uint16_t)value << 48;
    }
}

TARGET static bool build(Huffman *table, const uint8_t *counts, bool dc)
{
    int32_t code = 0;
    int place = 0;
    memset(table->looks, 0, sizeof table->looks);
    table->has_skips = false;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        int count = counts[length - 1];
        if (count && code + count >= 1 << length) /* a code of all ones is not allowed */
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
    if (!dc)
        build_pairs(table);
    return true;
}

/* Each entry: the bits of the codes and values, the coefficients that they skip, and whether the block then ends. */
TARGET static void build_skips(Huffman *table)
{
    for (uint32_t bits = 0; bits < 1 << LOOK; bits++) {
        uint32_t used = 0, passed = 0, ends = 0;
        while (used < LOOK && passed < 64 && !ends) {
            Look look = table->looks[bits << used & ((1 << LOOK) - 1)];
            int value_bits = __builtin_popcount(look >> 16 & 0xFFFF);
            if (!look || (int)used + first_bits(look) - value_bits > LOOK)
                break;
            used += (uint32_t)first_bits(look);
            ends = first_run(look) == END;
            passed += ends ? 0 : (uint32_t)first_run(look) + 1;
        }
        table->skips[bits] = used | passed << 8 | ends << 16;
    }
    table->has_skips = true;
}

/* Many files share their tables, so each thread caches the last ones. */
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
    int count;     /* valid bits; lower ones may already be set, and the next refill reads them again */
} Bits;

INLINE void refill(Bits *bits)
{
    uint64_t next;
    memcpy(&next, bits->at, 8);
    bits->bits |= __builtin_bswap64(next) >> bits->count;
    bits->at += (63 - bits->count) >> 3;
    bits->count |= 56;
}

TARGET static __attribute__((noinline)) Look long_look(const Huffman *table, bool dc, uint64_t bits)
{
    for (int length = LOOK + 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (64 - length));
        if (code <= table->last[length])
            return meaning(table->symbols[table->place[length] + code], dc, length);
    }
    return (Look)NONE << 32;
}

/* Look up the next code, and refill the bits of its value. The last code and value took at most 27 of the 56 bits of
   the last refill: enough are left for a look-up, so the load in refill() is off the critical path. */
INLINE Look next_look(Bits *bits, const Huffman *table, bool dc)
{
    Look look = table->looks[bits->bits >> (64 - LOOK)];
    if (__builtin_expect(!look, 0))
        look = long_look(table, dc, bits->bits);
    refill(bits);
    return look;
}

INLINE void consume(Bits *bits, int count)
{
    bits->bits <<= count & 63;
    bits->count -= count & 63;
}

typedef enum { DAMAGED, FLAT, DETAILED } Kind;

INLINE bool read_dc(Bits *bits, const Huffman *table, int16_t *coefficient, uint32_t *predicted)
{
    Look look = next_look(bits, table, true);
    *predicted += (uint32_t)first_value(look, bits->bits);
    *coefficient = (int16_t)*predicted;
    consume(bits, first_bits(look));
    return first_run(look) == 0;
}

/* Read one block of coefficients, not dequantized, in natural order. FLAT: only the DC coefficient is not zero. */
INLINE Kind read_block(Bits *bits, const Huffman *dc, const Huffman *ac, int16_t *block, uint32_t *predicted)
{
    for (int i = 0; i < 64; i += LANES) /* for memset, compilers choose instructions with a slow start */
        store(block + i, zero());
    if (!read_dc(bits, dc, block, predicted))
        return DAMAGED;
    int k = 1;
    do {
        Look look = next_look(bits, ac, false);
        int16_t value = (int16_t)first_value(look, bits->bits);
        k += first_run(look);
        if (k >= 63) { /* the last code of this block; the second code belongs to the next block */
            block[NATURAL[k++]] = value;
            consume(bits, first_bits(look));
            break;
        }
        int behind = k + step(look);
        block[NATURAL[behind - 1]] = second_value(look); /* without a second code, the next line overwrites it */
        block[NATURAL[k]] = value;
        consume(bits, (int)(look & 63));
        k = behind;
    } while (k < 64);
    if (k > 64 && k <= END)
        return DAMAGED;
    return k == 1 + END + 1 ? FLAT : DETAILED;
}

/* Skip the codes of a block after the first, like read_block. Return false for damaged ones. */
INLINE bool pass_codes(Bits *bits, const Huffman *ac)
{
    int k = 1;
    do {
        uint32_t skip = ac->skips[bits->bits >> (64 - LOOK)], ends = skip >> 16;
        int behind = k + (int)(skip >> 8 & 0xFF);
        /* The last of these codes may belong to the next block. */
        if (__builtin_expect(!skip || behind > 64 - (int)ends, 0)) {
            Look look = next_look(bits, ac, false);
            consume(bits, first_bits(look));
            k += 1 + first_run(look);
            continue;
        }
        refill(bits);
        consume(bits, (int)(skip & 63));
        if (ends)
            return true;
        k = behind;
    } while (k < 64);
    return k == 64 || k > END;
}
