/* Kernels with vectors. Included once for each kind of processor, by a file that defines KERNELS, and USE_AVX512 or not.

   Weights have 22 bits and a sign. Each is taken apart into a high part of 8 bits, in units of 1 << 16, and a low one of
   16 bits. High parts are multiplied with bytes and summed up in 16 bits, low ones with words and in 32 bits; of their
   sum the upper 16 bits count. All sums may wrap: what they come to fits. */

#include <immintrin.h>
#include <string.h>

#include "resampling.h"

#ifdef USE_AVX512

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))
typedef __m512i V;
#define OP(name) _mm512_##name
enum {
    LEVEL = AVX512
};

#else

#define TARGET __attribute__((target("avx2")))
typedef __m256i V;
#define OP(name) _mm256_##name
enum {
    LEVEL = AVX2
};

#endif

#define INLINE static inline __attribute__((always_inline)) TARGET

enum {
    BYTES = sizeof(V)
};

/* pick        the pixels of a quarter of a vector's bytes of values, each in 16 bits, from windows that begin at `places`
   add_dot     adds products of words, in pairs
   in_order    packed bytes of vectors whose halves come from two windows, in the order of the values
   lanes       packed bytes, lane after lane, in the order of the vectors that were packed */

#ifdef USE_AVX512

INLINE V load(const void *at) { return _mm512_loadu_si512(at); }
INLINE void store(void *at, V x) { _mm512_storeu_si512(at, x); }
INLINE V zero(void) { return _mm512_setzero_si512(); }

INLINE V pick(const uint8_t *row, const int32_t *places, V picks)
{
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555, picks, load(row + places[0]));
}

INLINE V add_dot(V sum, V x, V y) { return _mm512_dpwssd_epi32(sum, x, y); }

INLINE V in_order(V x)
{
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
}

enum {
    WINDOWS = 1 /* for a vector of words */
};

#else

INLINE V load(const void *at) { return _mm256_loadu_si256((const V *)at); }
INLINE void store(void *at, V x) { _mm256_storeu_si256((V *)at, x); }
INLINE V zero(void) { return _mm256_setzero_si256(); }

INLINE V pick(const uint8_t *row, const int32_t *places, V picks)
{
    V pixels = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(row + places[0])));
    pixels = _mm256_inserti128_si256(pixels, _mm_loadu_si128((const __m128i *)(row + places[1])), 1);
    return _mm256_shuffle_epi8(pixels, picks);
}

INLINE V add_dot(V sum, V x, V y) { return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)); }

INLINE V in_order(V x) { return _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); }

enum {
    WINDOWS = 2
};

#endif

INLINE V add_high(V sum, V pixels, V highs) { return OP(add_epi16)(sum, OP(maddubs_epi16)(pixels, highs)); }

/* The values of high and low sums, rounded, in 16 bits. */
INLINE V rounded(V high, V low, V next_low)
{
    const V lows = OP(packs_epi32)(OP(srai_epi32)(low, 16), OP(srai_epi32)(next_low, 16));
    return OP(mulhrs_epi16)(OP(add_epi16)(high, lows), OP(set1_epi16)(1 << (15 - (BITS - 16))));
}

/* ---- across, by groups of values ---- */

/* Half as many values as a vector has bytes, of each of two rows. */
INLINE void sum_up(const uint8_t *const row[2], const Table *table, int64_t block, int64_t pairs, V sums[2])
{
    const Head *head = table->head;
    const int64_t values = (int64_t)head->outputs * head->channels, blocks = (values + BYTES - 1) / BYTES * 2;
    const int32_t *places = table->places + 2 * WINDOWS * block;
    const V first_picks = load(table->picks + 2 * BYTES * block), next_picks = load(table->picks + 2 * BYTES * block + BYTES);
    V high[2], first_low[2], next_low[2];
    for (int i = 0; i < 2; i++)
        high[i] = first_low[i] = next_low[i] = zero();
    for (int64_t pair = 0; pair < pairs; pair++) {
        const int64_t at = BYTES * (pair * blocks + block);
        const V highs = load(table->highs + at), lows = load(table->lows + at), next_lows = load(table->lows + at + BYTES / 2);
        for (int i = 0; i < 2; i++) {
            const uint8_t *pixels = row[i] + 2 * head->channels * pair;
            const V first = pick(pixels, places, first_picks), next = pick(pixels, places + WINDOWS, next_picks);
            high[i] = add_high(high[i], OP(packus_epi16)(first, next), highs);
            first_low[i] = add_dot(first_low[i], first, lows);
            next_low[i] = add_dot(next_low[i], next, next_lows);
        }
    }
    for (int i = 0; i < 2; i++)
        sums[i] = rounded(high[i], first_low[i], next_low[i]);
}

INLINE void groups_of(const uint8_t *const row[2], const Table *table, int64_t pairs, uint8_t *const to[2])
{
    const int64_t values = (int64_t)table->head->outputs * table->head->channels;
    for (int64_t at = 0, block = 0; at < values; at += BYTES, block += 2) {
        V first[2], next[2];
        sum_up(row, table, block, pairs, first);
        sum_up(row, table, block + 1, pairs, next);
        for (int i = 0; i < 2; i++)
            store(to[i] + at, in_order(OP(packus_epi16)(first[i], next[i])));
    }
}

/* ---- across, one pixel after the other ---- */

/* Two rows, one in each half of a vector of 32 bytes, with any processor. */
INLINE void ones_of(const uint8_t *const row[2], const Table *table, int32_t channels, uint8_t *const to[2])
{
    const Head *head = table->head;
    const int64_t step_bytes = channels == 3 ? 12 : 16;
    const __m256i picks = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table->picks));
    const __m256i none = _mm256_setzero_si256();
    const int16_t *lows = table->lows;
    const int8_t *highs = table->highs;
    for (int64_t output = 0; output < head->outputs; output++) {
        const uint8_t *pixels[2] = {row[0] + table->places[output], row[1] + table->places[output]};
        __m256i high = none, low = none, next_low = none;
        for (int32_t step = 0; step < head->steps; step++, lows += 16, highs += 16) {
            __m256i bytes = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(pixels[0] + step * step_bytes)));
            bytes = _mm256_inserti128_si256(bytes, _mm_loadu_si128((const __m128i *)(pixels[1] + step * step_bytes)), 1);
            bytes = _mm256_shuffle_epi8(bytes, picks);
            const __m256i by_high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)highs));
            const __m256i by_low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)lows));
            const __m256i by_next = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(lows + 8)));
            high = _mm256_add_epi16(high, _mm256_maddubs_epi16(bytes, by_high));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi8(bytes, none), by_low));
            next_low = _mm256_add_epi32(next_low, _mm256_madd_epi16(_mm256_unpackhi_epi8(bytes, none), by_next));
        }
        low = _mm256_add_epi32(low, _mm256_unpacklo_epi16(none, high));
        next_low = _mm256_add_epi32(next_low, _mm256_unpackhi_epi16(none, high));
        __m256i sum = _mm256_add_epi32(low, next_low);
        if (channels < 3)
            sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4E));
        if (channels == 1)
            sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xB1));
        sum = _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (BITS - 1))), BITS);
        sum = _mm256_packus_epi16(_mm256_packs_epi32(sum, sum), none);
        const int32_t pixel[2] = {_mm256_extract_epi32(sum, 0), _mm256_extract_epi32(sum, 4)};
        for (int i = 0; i < 2; i++)
            memcpy(to[i] + output * channels, pixel + i, 4); /* those behind the pixel are overwritten */
    }
}

TARGET static void across(const Table *table, const uint8_t *const row[2], uint8_t *const to[2])
{
    const int64_t steps = table->head->steps;
    const int32_t channels = table->head->channels;
    if (table->head->reading == GROUPS) { /* the compiler unrolls the first ones */
        if (steps == 1)
            groups_of(row, table, 1, to);
        else if (steps == 2)
            groups_of(row, table, 2, to);
        else
            groups_of(row, table, steps, to);
    } else if (channels == 1)
        ones_of(row, table, 1, to);
    else if (channels == 2)
        ones_of(row, table, 2, to);
    else if (channels == 3)
        ones_of(row, table, 3, to);
    else
        ones_of(row, table, 4, to);
}

/* ---- down ---- */

INLINE void blend(const uint8_t *const *rows, const int32_t *lows, const int16_t *highs, int64_t pairs, int64_t bytes,
                  uint8_t *to)
{
    for (int64_t at = 0; at < bytes; at += BYTES) {
        const int64_t here = at <= bytes - BYTES ? at : bytes - BYTES; /* the last ones, perhaps once more */
        V high[2], low[4];
        high[0] = high[1] = low[0] = low[1] = low[2] = low[3] = zero();
        for (int64_t pair = 0; pair < pairs; pair++) {
            const V x = load(rows[2 * pair] + here), y = load(rows[2 * pair + 1] + here);
            const V by_high = OP(set1_epi16)(highs[pair]), by_low = OP(set1_epi32)(lows[pair]);
            const V both[2] = {OP(unpacklo_epi8)(x, y), OP(unpackhi_epi8)(x, y)};
            for (int i = 0; i < 2; i++) {
                high[i] = add_high(high[i], both[i], by_high);
                low[2 * i] = add_dot(low[2 * i], OP(unpacklo_epi8)(both[i], zero()), by_low);
                low[2 * i + 1] = add_dot(low[2 * i + 1], OP(unpackhi_epi8)(both[i], zero()), by_low);
            }
        }
        store(to + here, OP(packus_epi16)(rounded(high[0], low[0], low[1]), rounded(high[1], low[2], low[3])));
    }
}

TARGET static void down(const uint8_t *const *rows, const int32_t *weights, int64_t taps, int64_t bytes, uint8_t *to,
                        void *room)
{
    if (bytes < BYTES) {
        any_kernels.down(rows, weights, taps, bytes, to, room);
        return;
    }
    const int64_t pairs = (taps + 1) / 2;
    int32_t *lows = room;
    int16_t *highs = (int16_t *)(lows + pairs);
    for (int64_t pair = 0; pair < pairs; pair++) {
        const int32_t first = weights[2 * pair], second = 2 * pair + 1 < taps ? weights[2 * pair + 1] : 0;
        const int32_t high = (first + (1 << 15)) >> 16, next_high = (second + (1 << 15)) >> 16;
        lows[pair] = (int32_t)((uint32_t)(first & 0xFFFF) | (uint32_t)second << 16);
        highs[pair] = (int16_t)((high & 0xFF) | next_high * 256);
    }
    if (pairs == 1)
        blend(rows, lows, highs, 1, bytes, to);
    else if (pairs == 2)
        blend(rows, lows, highs, 2, bytes, to);
    else
        blend(rows, lows, highs, pairs, bytes, to);
}

const Kernels KERNELS = {across, down};
