/* Vector kernels. Included once for each kind of processor, by a file that defines KERNELS, and USE_AVX512 or not.

   Weights have 22 bits and a sign. Each is split into a high part of 8 bits, in units of 1 << 16, and a low part of 16
   bits. High parts are multiplied with bytes and summed in 16 bits. Low parts are multiplied with words and summed in
   32 bits, of which the upper 16 bits are used. All sums may wrap: the final results fit.

   A value between two pixels x and y, with weights 1 - w and w, is cheaper: it is x + w * (y - x). The low part of w is
   multiplied only with that difference, so only the upper 16 bits of the product are needed. */

#include <immintrin.h>
#include <string.h>

#include "resampling.h"

#ifdef USE_AVX512

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))
typedef __m512i V;
#define OP(name) _mm512_##name
#define AND _mm512_and_si512
enum {
    LEVEL = AVX512
};

#else

#define TARGET __attribute__((target("avx2")))
typedef __m256i V;
#define OP(name) _mm256_##name
#define AND _mm256_and_si256
enum {
    LEVEL = AVX2
};

#endif

#define INLINE static inline __attribute__((always_inline)) TARGET

enum {
    BYTES = sizeof(V)
};

/* pick                returns the pixels of one group for each window of a vector
   pick_wide           the same, with 16 bits for each pixel
   add_dot             adds products of words, in pairs
   high_words          interleaves the upper 16 bits of `even` and of `odd`
   swap_middles        returns picks that swap the middle two of four bytes
   in_order            restores the order of two vectors after packing
   in_order_of_words   restores the order of four vectors after packing them twice */

#ifdef USE_AVX512

INLINE V load(const void *at) { return _mm512_loadu_si512(at); }
INLINE void store(void *at, V x) { _mm512_storeu_si512(at, x); }
INLINE V zero(void) { return _mm512_setzero_si512(); }

INLINE V pick(const uint8_t *row, const int32_t *places, V picks)
{
    return _mm512_permutexvar_epi8(picks, load(row + places[0]));
}

INLINE V pick_wide(const uint8_t *row, const int32_t *places, V picks)
{
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555, picks, load(row + places[0]));
}

INLINE V add_dot(V sum, V x, V y) { return _mm512_dpwssd_epi32(sum, x, y); }

INLINE V high_words(V even, V odd) { return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd); }

INLINE V in_order(V x) { return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), x); }

INLINE V in_order_of_words(V x)
{
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
}

INLINE V swap_middles(void) { return _mm512_set4_epi32(0x0F0D0E0C, 0x0B090A08, 0x07050604, 0x03010200); }

enum {
    WINDOWS = 1 /* windows of a vector */
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

/* Every other pick is NOTHING. */
INLINE V pick_wide(const uint8_t *row, const int32_t *places, V picks) { return pick(row, places, picks); }

INLINE V add_dot(V sum, V x, V y) { return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)); }

INLINE V high_words(V even, V odd) { return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA); }

INLINE V in_order(V x) { return _mm256_permute4x64_epi64(x, 0xD8); }

INLINE V in_order_of_words(V x) { return _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); }

INLINE V swap_middles(void)
{
    return _mm256_broadcastsi128_si256(_mm_set_epi32(0x0F0D0E0C, 0x0B090A08, 0x07050604, 0x03010200));
}

enum {
    WINDOWS = 2
};

#endif

INLINE V add_high(V sum, V pixels, V highs) { return OP(add_epi16)(sum, OP(maddubs_epi16)(pixels, highs)); }

/* Round sums in units of 1 << 16. */
INLINE V rounded(V sum) { return OP(mulhrs_epi16)(sum, OP(set1_epi16)(1 << (15 - (BITS - 16)))); }

/* Return the first byte of each word, or the second one, as words. */
INLINE V even_bytes(V x) { return AND(x, OP(set1_epi16)(0xFF)); }
INLINE V odd_bytes(V x) { return OP(srli_epi16)(x, 8); }

/* ---- across, by groups of values ---- */

/* Compute a block of values, half as many as a vector has bytes, for each of two rows. */
INLINE void sum_up(const uint8_t *const row[2], const Table *table, int64_t block, int64_t pairs, bool close, V sums[2])
{
    const Head *head = table->head;
    const int64_t values = (int64_t)head->outputs * head->channels, blocks = (values + BYTES - 1) / BYTES * 2;
    const int32_t *places = table->places + (close ? 1 : 2) * WINDOWS * block;
    const uint8_t *picks = table->picks + (close ? 1 : 2) * BYTES * block;
    const V first_picks = load(picks), next_picks = close ? first_picks : load(picks + BYTES);
    V high[2], low[2][2];
    for (int i = 0; i < 2; i++)
        high[i] = low[i][0] = low[i][1] = zero();
    for (int64_t pair = 0; pair < pairs; pair++) {
        const int64_t at = BYTES * (pair * blocks + block);
        const V highs = load(table->highs + at), lows[2] = {load(table->lows + at), load(table->lows + at + BYTES / 2)};
        for (int i = 0; i < 2; i++) {
            const uint8_t *pixels = row[i] + 2 * head->channels * pair;
            V bytes, words[2];
            if (close) {
                bytes = pick(pixels, places, first_picks);
                const V swapped = OP(shuffle_epi8)(bytes, swap_middles());
                words[0] = even_bytes(swapped);
                words[1] = odd_bytes(swapped);
            } else {
                words[0] = pick_wide(pixels, places, first_picks);
                words[1] = pick_wide(pixels, places + WINDOWS, next_picks);
                bytes = OP(packus_epi16)(words[0], words[1]);
            }
            high[i] = add_high(high[i], bytes, highs);
            low[i][0] = add_dot(low[i][0], words[0], lows[0]);
            low[i][1] = add_dot(low[i][1], words[1], lows[1]);
        }
    }
    for (int i = 0; i < 2; i++) {
        const V carried = close ? high_words(low[i][0], low[i][1])
                                : OP(packs_epi32)(OP(srai_epi32)(low[i][0], 16), OP(srai_epi32)(low[i][1], 16));
        sums[i] = rounded(OP(add_epi16)(high[i], carried));
    }
}

/* Interpolate between pixels that are adjacent in `bytes`. */
INLINE V between(V bytes, V highs, V lows)
{
    const V difference = OP(maddubs_epi16)(bytes, OP(set1_epi16)(0x01FF)); /* by -1 and 1 */
    return rounded(OP(add_epi16)(OP(maddubs_epi16)(bytes, highs), OP(mulhi_epi16)(difference, lows)));
}

INLINE void interpolate(const uint8_t *const row[2], const Table *table, int64_t block, V sums[2])
{
    const int32_t *places = table->places + WINDOWS * block;
    const V picks = load(table->picks + BYTES * block), highs = load(table->highs + BYTES * block);
    const V lows = load(table->lows + BYTES / 2 * block);
    for (int i = 0; i < 2; i++)
        sums[i] = between(pick(row[i], places, picks), highs, lows);
}

/* `pairs` is 0 to interpolate between two pixels. */
INLINE void groups_of(const uint8_t *const row[2], const Table *table, int64_t pairs, bool close, uint8_t *const to[2])
{
    const int64_t values = (int64_t)table->head->outputs * table->head->channels;
    for (int64_t at = 0, block = 0; at < values; at += BYTES, block += 2) {
        V sums[2][2];
        for (int i = 0; i < 2; i++)
            if (pairs == 0)
                interpolate(row, table, block + i, sums[i]);
            else
                sum_up(row, table, block + i, pairs, close, sums[i]);
        for (int i = 0; i < 2; i++) {
            const V packed = OP(packus_epi16)(sums[0][i], sums[1][i]);
            store(to[i] + at, close ? in_order(packed) : in_order_of_words(packed));
        }
    }
}

/* The compiler unrolls the first two cases. */
INLINE void across_groups(const uint8_t *const row[2], const Table *table, bool close, uint8_t *const to[2])
{
    const int64_t pairs = table->head->steps;
    if (pairs == 1)
        groups_of(row, table, 1, close, to);
    else if (pairs == 2)
        groups_of(row, table, 2, close, to);
    else
        groups_of(row, table, pairs, close, to);
}

/* ---- across, pixel by pixel ---- */

/* Resize two rows, one in each half of a vector of 32 bytes, also with AVX-512. */
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
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0xFF)), by_low));
            next_low = _mm256_add_epi32(next_low, _mm256_madd_epi16(_mm256_srli_epi16(bytes, 8), by_next));
        }
        low = _mm256_add_epi32(low, _mm256_slli_epi32(high, 16)); /* combine the two high sums of a channel */
        next_low = _mm256_add_epi32(next_low, _mm256_and_si256(high, _mm256_set1_epi32(-(1 << 16))));
        __m256i sum = _mm256_add_epi32(low, next_low);
        if (channels < 3)
            sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4E));
        if (channels == 1)
            sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xB1));
        sum = _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << (BITS - 1))), BITS);
        sum = _mm256_packus_epi16(_mm256_packs_epi32(sum, sum), none);
        const int32_t pixel[2] = {_mm256_extract_epi32(sum, 0), _mm256_extract_epi32(sum, 4)};
        for (int i = 0; i < 2; i++)
            memcpy(to[i] + output * channels, pixel + i, 4); /* the next pixels overwrite the bytes past this one */
    }
}

TARGET static void across(const Table *table, const uint8_t *const row[2], uint8_t *const to[2])
{
    const int32_t channels = table->head->channels;
    if (table->head->reading == LINEAR)
        groups_of(row, table, 0, true, to);
    else if (table->head->reading == CLOSE)
        across_groups(row, table, true, to);
    else if (table->head->reading == WIDE)
        across_groups(row, table, false, to);
    else if (channels == 1)
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
        const int64_t here = at <= bytes - BYTES ? at : bytes - BYTES; /* the last vector may overlap the one before */
        V high[2], low[2][2];
        high[0] = high[1] = low[0][0] = low[0][1] = low[1][0] = low[1][1] = zero();
        for (int64_t pair = 0; pair < pairs; pair++) {
            const V x = load(rows[2 * pair] + here), y = load(rows[2 * pair + 1] + here);
            const V by_high = OP(set1_epi16)(highs[pair]), by_low = OP(set1_epi32)(lows[pair]);
            const V bytes[2] = {OP(unpacklo_epi8)(x, y), OP(unpackhi_epi8)(x, y)};
            const V words[2] = {OP(unpacklo_epi16)(x, y), OP(unpackhi_epi16)(x, y)};
            for (int i = 0; i < 2; i++) {
                high[i] = add_high(high[i], bytes[i], by_high);
                low[i][0] = add_dot(low[i][0], even_bytes(words[i]), by_low);
                low[i][1] = add_dot(low[i][1], odd_bytes(words[i]), by_low);
            }
        }
        V sums[2];
        for (int i = 0; i < 2; i++)
            sums[i] = rounded(OP(add_epi16)(high[i], high_words(low[i][0], low[i][1])));
        store(to + here, OP(packus_epi16)(sums[0], sums[1]));
    }
}

INLINE void blend_linear(const uint8_t *const *rows, int32_t second, int64_t bytes, uint8_t *to)
{
    const int32_t high = (second + (1 << 15)) >> 16, one = 1 << (BITS - 16);
    const V lows = OP(set1_epi16)((int16_t)(second - high * (1 << 16)));
    const V highs = OP(set1_epi16)((int16_t)(high * 256 + one - high));
    for (int64_t at = 0; at < bytes; at += BYTES) {
        const int64_t here = at <= bytes - BYTES ? at : bytes - BYTES;
        const V x = load(rows[0] + here), y = load(rows[1] + here);
        const V front = between(OP(unpacklo_epi8)(x, y), highs, lows);
        const V back = between(OP(unpackhi_epi8)(x, y), highs, lows);
        store(to + here, OP(packus_epi16)(front, back));
    }
}

TARGET static void down(const uint8_t *const *rows, const int32_t *weights, int64_t taps, int64_t bytes, uint8_t *to,
                        void *room)
{
    if (bytes < BYTES) {
        any_kernels.down(rows, weights, taps, bytes, to, room);
        return;
    }
    if (taps <= 2 && is_between(weights[0], taps == 2 ? weights[1] : 0)) {
        blend_linear(rows, taps == 2 ? weights[1] : 0, bytes, to);
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

/* ---- alpha ---- */

/* Return products of bytes divided by 255, rounded, as words. */
INLINE V share(V words, V alphas)
{
    const V product = OP(add_epi16)(OP(mullo_epi16)(words, alphas), OP(set1_epi16)(128));
    return OP(srli_epi16)(OP(add_epi16)(product, OP(srli_epi16)(product, 8)), 8);
}

TARGET static void premultiply(const uint8_t *from, int64_t bytes, uint8_t *to)
{
    const int64_t whole = bytes - bytes % BYTES;
    for (int64_t at = 0; at < whole; at += BYTES) {
        const V pixels = load(from + at), alphas = OP(srli_epi32)(pixels, 24);
        const V even = share(even_bytes(pixels), OP(add_epi32)(alphas, OP(slli_epi32)(alphas, 16)));
        const V odd = share(odd_bytes(pixels), OP(add_epi32)(alphas, OP(set1_epi32)(255 << 16))); /* green and alpha */
        store(to + at, OP(add_epi16)(even, OP(slli_epi16)(odd, 8)));
    }
    any_kernels.premultiply(from + whole, bytes - whole, to + whole);
}

/* Quotients of floats are far enough from the next integer to be truncated. Alpha 0 divides by 255, as alpha 255 does:
   colours do not change. */
TARGET static void unpremultiply(uint8_t *pixels, int64_t bytes)
{
    const int64_t whole = bytes - bytes % BYTES;
    const V most = OP(set1_epi32)(255);
    for (int64_t at = 0; at < whole; at += BYTES) {
        const V found = load(pixels + at), alphas = OP(srli_epi32)(found, 24);
        const V divisors = OP(add_epi32)(alphas, OP(srli_epi32)(OP(sub_epi32)(alphas, OP(set1_epi32)(1)), 24));
        V result = OP(slli_epi32)(alphas, 24);
        for (int shift = 0; shift < 24; shift += 8) {
            const V color = OP(mullo_epi32)(AND(OP(srli_epi32)(found, shift), most), most);
            const V quotient = OP(cvttps_epi32)(OP(div_ps)(OP(cvtepi32_ps)(color), OP(cvtepi32_ps)(divisors)));
            result = OP(add_epi32)(result, OP(slli_epi32)(OP(min_epi32)(quotient, most), shift));
        }
        store(pixels + at, result);
    }
    any_kernels.unpremultiply(pixels + whole, bytes - whole);
}

const Kernels KERNELS = {across, down, premultiply, unpremultiply};
