/* Resizes RGB images as OpenCV's linear interpolation and torch's antialiased one do, bit for bit, and faster.

   Both resize each row, and then blend the rows so made, with weights in fixed point. What the tables say is trusted.
   Included once for each kind of processor, by a file that defines USE_AVX512 or not. */

#include <immintrin.h>
#include <string.h>

#include "resize.h"

#ifdef USE_AVX512

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vbmi")))
typedef __m512i V;
#define OP(name) _mm512_##name
enum {
    WINDOW = 64
};

#else

#define TARGET __attribute__((target("avx2")))
typedef __m256i V;
#define OP(name) _mm256_##name
enum {
    WINDOW = 16
};

#endif

#define INLINE static inline __attribute__((always_inline)) TARGET

enum {
    LANES = sizeof(V) / 2,      /* of 16 bits */
    GROUPS = sizeof(V) / WINDOW /* in a vector */
};

/* in_order   what packing two vectors gives, in the order in which they were
   pick       the pixels of as many groups as a vector has, `at` bytes further
   pick_wide  the same, each one in 16 bits */

#ifdef USE_AVX512

INLINE V load(const void *at) { return _mm512_loadu_si512(at); }
INLINE void store(void *at, V x) { _mm512_storeu_si512(at, x); }

INLINE V in_order(V x) { return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), x); }

INLINE V pick(const uint8_t *row, const Across *across, int64_t group, int64_t at, V picks)
{
    return _mm512_permutexvar_epi8(picks, load(row + across->places[group] + at));
}

INLINE V pick_wide(const uint8_t *row, const Across *across, int64_t group, int64_t at, V picks)
{
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555, picks, load(row + across->places[group] + at));
}

#else

INLINE V load(const void *at) { return _mm256_loadu_si256((const V *)at); }
INLINE void store(void *at, V x) { _mm256_storeu_si256((V *)at, x); }

INLINE V in_order(V x) { return _mm256_permute4x64_epi64(x, 0xD8); }

INLINE V pick(const uint8_t *row, const Across *across, int64_t group, int64_t at, V picks)
{
    const uint8_t *first = row + across->places[group] + at, *second = row + across->places[group + 1] + at;
    V pixels = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first));
    pixels = _mm256_inserti128_si256(pixels, _mm_loadu_si128((const __m128i *)second), 1);
    return _mm256_shuffle_epi8(pixels, picks);
}

/* Each second one of the picks is none. */
INLINE V pick_wide(const uint8_t *row, const Across *across, int64_t group, int64_t at, V picks)
{
    return pick(row, across, group, at, picks);
}

#endif

/* ---- linear interpolation, as OpenCV does it ---- */

/* Weights have 11 bits, and four bits of the sum go. Of both weights (2048 - w) and w the lower four bits are taken
   apart: (2048 - w) * a + w * b = 16 * ((128 - c) * a + c * b) + f * (b - a), where w = 16 * c + f. */
INLINE void across_linear(const uint8_t *row, const Across *across, int16_t *to)
{
    const uint8_t *coarse = across->weights, *fine = coarse + WINDOW * across->groups;
    for (int64_t group = 0; group < across->groups; group += GROUPS, to += LANES) {
        const int64_t at = WINDOW * group;
        V pixels = pick(row, across, group, 0, load(across->picks + at));
        V sum = OP(srai_epi16)(OP(maddubs_epi16)(pixels, load(fine + at)), 4);
        store(to, OP(add_epi16)(sum, OP(maddubs_epi16)(pixels, load(coarse + at))));
    }
}

/* Values of two rows, each of which is multiplied and cut off by itself. */
INLINE V blend_linear(const int16_t *first, const int16_t *second, V by_first, V by_second)
{
    V a = OP(mulhi_epi16)(load(first), by_first), b = OP(mulhi_epi16)(load(second), by_second);
    return OP(srai_epi16)(OP(add_epi16)(OP(add_epi16)(a, b), OP(set1_epi16)(2)), 2);
}

/* ---- antialiased interpolation, as torch does it ---- */

/* Sums of two rows: of the values of as many groups as a vector has. */
INLINE void sum_up(const uint8_t *const row[2], const Across *across, int64_t group, int32_t pairs, V half, V sum[2])
{
    const V picks = load(across->picks + WINDOW * group);
    sum[0] = sum[1] = half;
    for (int32_t pair = 0; pair < pairs; pair++) {
        const V weights = load(across->weights + WINDOW * (pair * across->groups + group));
        for (int i = 0; i < 2; i++) {
            V pixels = pick_wide(row[i], across, group, 2 * RGB * pair, picks);
            sum[i] = OP(add_epi32)(sum[i], OP(madd_epi16)(pixels, weights));
        }
    }
}

/* Two rows, for which places, picks and weights are read once. */
INLINE void across_antialiased(const uint8_t *const row[2], const Across *across, int32_t pairs, int16_t *const to[2])
{
    const V half = OP(set1_epi32)(across->head->half);
    const __m128i shift = _mm_cvtsi32_si128(across->head->shift);
    int64_t at = 0;
    for (int64_t group = 0; group < across->groups; group += 2 * GROUPS, at += LANES) {
        V low[2], high[2];
        sum_up(row, across, group, pairs, half, low);
        sum_up(row, across, group + GROUPS, pairs, half, high);
        for (int i = 0; i < 2; i++) {
            V sums = OP(packs_epi32)(OP(sra_epi32)(low[i], shift), OP(sra_epi32)(high[i], shift));
            store(to[i] + at, in_order(sums));
        }
    }
}

/* Values of one sum over all rows. */
INLINE V blend_antialiased(const int16_t *const *rows, int64_t at, const int32_t *weights, int32_t pairs, V half,
                           __m128i shift)
{
    V low = half, high = half;
    for (int32_t pair = 0; pair < pairs; pair++) {
        V a = load(rows[2 * pair] + at), b = load(rows[2 * pair + 1] + at), by = OP(set1_epi32)(weights[pair]);
        low = OP(add_epi32)(low, OP(madd_epi16)(OP(unpacklo_epi16)(a, b), by));
        high = OP(add_epi32)(high, OP(madd_epi16)(OP(unpackhi_epi16)(a, b), by));
    }
    return OP(packs_epi32)(OP(sra_epi32)(low, shift), OP(sra_epi32)(high, shift));
}

/* ---- both ---- */

/* Two rows of the image. */
INLINE void resize_rows(const uint8_t *const row[2], const Across *across, bool linear, int16_t *const to[2])
{
    const int32_t pairs = across->head->pairs;
    if (linear)
        for (int i = 0; i < 2; i++)
            across_linear(row[i], across, to[i]);
    else if (pairs == 1) /* the compiler unrolls these two */
        across_antialiased(row, across, 1, to);
    else if (pairs == 2)
        across_antialiased(row, across, 2, to);
    else
        across_antialiased(row, across, pairs, to);
}

/* A row of the result, of such rows. */
INLINE void blend_by(const int16_t *const *rows, const Head *down, const int32_t *weights, bool linear, int32_t pairs,
                     uint8_t *to, int64_t values)
{
    const V half = OP(set1_epi32)(down->half);
    const __m128i shift = _mm_cvtsi32_si128(down->shift);
    const V by_first = OP(set1_epi16)((int16_t)weights[0]), by_second = OP(set1_epi16)((int16_t)(weights[0] >> 16));
    for (int64_t at = 0; at < values; at += 2 * LANES) {
        V part[2];
        for (int64_t i = 0; i < 2; i++)
            part[i] = linear ? blend_linear(rows[0] + at + LANES * i, rows[1] + at + LANES * i, by_first, by_second)
                             : blend_antialiased(rows, at + LANES * i, weights, pairs, half, shift);
        V some = in_order(OP(packus_epi16)(part[0], part[1]));
        if (values - at >= 2 * LANES)
            store(to + at, some);
        else {
            uint8_t bytes[sizeof(V)];
            store(bytes, some);
            memcpy(to + at, bytes, (size_t)(values - at));
        }
    }
}

INLINE void blend(const int16_t *const *rows, const Head *down, const int32_t *weights, bool linear, uint8_t *to,
                  int64_t values)
{
    if (linear)
        blend_by(rows, down, weights, true, 1, to, values);
    else if (down->pairs == 1)
        blend_by(rows, down, weights, false, 1, to, values);
    else if (down->pairs == 2)
        blend_by(rows, down, weights, false, 2, to, values);
    else
        blend_by(rows, down, weights, false, down->pairs, to, values);
}

static int64_t clamp(int64_t x, int64_t last) { return x < 0 ? 0 : x > last ? last : x; }

/* Where a row of the image is kept. */
static int16_t *place_in(int16_t *kept, int64_t row, int64_t values) { return kept + (int64_t)((uint64_t)row % RING) * values; }

TARGET void ENTRY(const Image *image, const Across *across, const Down *down, bool linear, void *memory, uint8_t *out)
{
    const int64_t out_values = RGB * (int64_t)across->head->outputs, row_bytes = RGB * image->width;
    const int64_t last = image->height - 1, taps = 2 * (int64_t)down->head->pairs;
    const uint8_t *end = image->pixels + last * image->stride + row_bytes;
    int16_t *kept = (int16_t *)((uintptr_t)memory + LINE - (uintptr_t)memory % LINE);
    uint8_t *copies = (uint8_t *)(kept + RING * across->values);
    int64_t done = 0;
    for (int64_t y = 0; y < down->head->outputs; y++, out += out_values) {
        const int64_t first = down->firsts[y];
        for (done = done < first ? first : done; done <= clamp(first + taps - 1, last); done += 2) {
            const uint8_t *row[2];
            int16_t *to[2];
            for (int i = 0; i < 2; i++) {
                row[i] = image->pixels + clamp(done + i, last) * image->stride;
                if (end - row[i] < across->head->reach)
                    row[i] = memcpy(copies + i * (row_bytes + across->head->reach), row[i], (size_t)row_bytes);
                to[i] = place_in(kept, done + i, across->values);
            }
            resize_rows(row, across, linear, to);
        }
        const int16_t *rows[2 * MOST_PAIRS];
        for (int64_t tap = 0; tap < taps; tap++)
            rows[tap] = place_in(kept, clamp(first + tap, last), across->values);
        blend(rows, down->head, down->weights + y * (taps / 2), linear, out, out_values);
    }
}
