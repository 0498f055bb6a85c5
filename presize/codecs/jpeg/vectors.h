/* Vectors of 16-bit lanes: common names for the operations of AVX-512, AVX2, SSE2 and NEON.

   V has 128-bit parts (four with AVX-512, two with AVX2, otherwise one), and only load, store and widen cross them.
   OP(name) is the operation that x86 calls _mm_name; below, NEON gets a function with the same meaning. The file that
   includes this one defines USE_AVX512, USE_AVX2 or neither. */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#else
#error "this decoder is for x86-64 and ARM64"
#endif

#if defined USE_AVX512
#define TARGET __attribute__((target("avx512bw,avx512vl,bmi,bmi2")))
#elif defined USE_AVX2
#define TARGET __attribute__((target("avx2,bmi,bmi2")))
#else
#define TARGET
#endif
#define INLINE static inline __attribute__((always_inline)) TARGET

#if defined __x86_64__

/* Store the lower eight bytes to one address and the upper eight to another. _mm_storeh_pd would require an address
   that is aligned for a double. */
INLINE void store_parts(__m128i x, uint8_t *to_lower, uint8_t *to_upper)
{
    typedef double Anywhere __attribute__((aligned(1), may_alias));
    _mm_storel_epi64((__m128i *)to_lower, x);
    *(Anywhere *)to_upper = _mm_castsi128_pd(x)[1];
}

#endif

#if defined USE_AVX512

typedef __m512i V;
#define OP(name) _mm512_##name

INLINE V load(const void *at) { return _mm512_loadu_si512(at); }
INLINE void store(void *at, V x) { _mm512_storeu_si512(at, x); }
INLINE V zero(void) { return _mm512_setzero_si512(); }
INLINE V xor(V a, V b) { return _mm512_xor_si512(a, b); }
INLINE V or(V a, V b) { return _mm512_or_si512(a, b); }
INLINE V and(V a, V b) { return _mm512_and_si512(a, b); }
INLINE V equal(V a, V b) { return _mm512_movm_epi16(_mm512_cmpeq_epi16_mask(a, b)); }
INLINE V greater(V a, V b) { return _mm512_movm_epi16(_mm512_cmpgt_epi16_mask(a, b)); }
INLINE V widen(const uint8_t *at) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)at)); }
INLINE V repeat(const void *at) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)at)); }
INLINE bool all_ones(V x) { return _mm512_movepi8_mask(x) == UINT64_MAX; }

INLINE V load_parts(const int16_t *const *from, int offset)
{
    V x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(from[0] + offset)));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(from[1] + offset)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(from[2] + offset)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(from[3] + offset)), 3);
}

INLINE int before_ff(V x)
{
    uint64_t found = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(-1));
    return found ? __builtin_ctzll(found) : 64;
}

INLINE void store_eights(V x, uint8_t *const *to, int64_t offset, int64_t stride)
{
    store_parts(_mm512_castsi512_si128(x), to[0] + offset, to[0] + offset + stride);
    store_parts(_mm512_extracti32x4_epi32(x, 1), to[1] + offset, to[1] + offset + stride);
    store_parts(_mm512_extracti32x4_epi32(x, 2), to[2] + offset, to[2] + offset + stride);
    store_parts(_mm512_extracti32x4_epi32(x, 3), to[3] + offset, to[3] + offset + stride);
}

INLINE void store4(uint8_t *out, V even, V odd)
{
    const V first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    store(out, _mm512_permutex2var_epi64(even, first, odd));
    store(out + 64, _mm512_permutex2var_epi64(even, second, odd));
}

INLINE void store3(uint8_t *out, V even, V odd)
{
    const V three = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    uint8_t all[2 * sizeof(V)];
    store4(all, _mm512_shuffle_epi8(even, three), _mm512_shuffle_epi8(odd, three));
    for (int i = 0; i < 8; i++)
        _mm_storeu_si128((__m128i *)(out + 12 * i), _mm_loadu_si128((const __m128i *)(all + 16 * i)));
}

#elif defined USE_AVX2

typedef __m256i V;
#define OP(name) _mm256_##name

INLINE V load(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE void store(void *at, V x) { _mm256_storeu_si256((__m256i *)at, x); }
INLINE V zero(void) { return _mm256_setzero_si256(); }
INLINE V xor(V a, V b) { return _mm256_xor_si256(a, b); }
INLINE V or(V a, V b) { return _mm256_or_si256(a, b); }
INLINE V and(V a, V b) { return _mm256_and_si256(a, b); }

INLINE V equal(V a, V b) { return _mm256_cmpeq_epi16(a, b); }
INLINE V greater(V a, V b) { return _mm256_cmpgt_epi16(a, b); }

/* Load one byte into each lane. */
INLINE V widen(const uint8_t *at) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at)); }

/* Load the same 16 bytes into each part. */
INLINE V repeat(const void *at) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)at)); }

/* Load 16 bytes into each part, from its address in `from` plus `offset`. */
INLINE V load_parts(const int16_t *const *from, int offset)
{
    V x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(from[0] + offset)));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(from[1] + offset)), 1);
}

/* Count the bytes before the first 0xFF; sizeof(V) if there is none. */
INLINE int before_ff(V x)
{
    unsigned found = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_set1_epi8(-1)));
    return found ? __builtin_ctz(found) : 32;
}

INLINE bool all_ones(V x) { return _mm256_movemask_epi8(x) == -1; }

/* Store two rows of eight bytes from each part, at its address in `to` plus `offset`. */
INLINE void store_eights(V x, uint8_t *const *to, int64_t offset, int64_t stride)
{
    store_parts(_mm256_castsi256_si128(x), to[0] + offset, to[0] + offset + stride);
    store_parts(_mm256_extracti128_si256(x, 1), to[1] + offset, to[1] + offset + stride);
}

/* Store pixels of four bytes in order: 0 to 3 of each part from `even`, 4 to 7 from `odd`. */
INLINE void store4(uint8_t *out, V even, V odd)
{
    store(out, _mm256_permute2x128_si256(even, odd, 0x20));
    store(out + 32, _mm256_permute2x128_si256(even, odd, 0x31));
}

/* Store the same pixels without their fourth bytes. Writes four bytes more than that. */
INLINE void store3(uint8_t *out, V even, V odd)
{
    const V three = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    even = _mm256_shuffle_epi8(even, three);
    odd = _mm256_shuffle_epi8(odd, three);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(even));
    _mm_storeu_si128((__m128i *)(out + 12), _mm256_castsi256_si128(odd));
    _mm_storeu_si128((__m128i *)(out + 24), _mm256_extracti128_si256(even, 1));
    _mm_storeu_si128((__m128i *)(out + 36), _mm256_extracti128_si256(odd, 1));
}

#elif defined __x86_64__

typedef __m128i V;
#define OP(name) _mm_##name

INLINE V load(const void *at) { return _mm_loadu_si128((const __m128i *)at); }
INLINE void store(void *at, V x) { _mm_storeu_si128((__m128i *)at, x); }
INLINE V zero(void) { return _mm_setzero_si128(); }
INLINE V xor(V a, V b) { return _mm_xor_si128(a, b); }
INLINE V or(V a, V b) { return _mm_or_si128(a, b); }
INLINE V and(V a, V b) { return _mm_and_si128(a, b); }
INLINE V widen(const uint8_t *at) { return _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)at), zero()); }
INLINE V equal(V a, V b) { return _mm_cmpeq_epi16(a, b); }
INLINE V greater(V a, V b) { return _mm_cmpgt_epi16(a, b); }
INLINE bool all_ones(V x) { return _mm_movemask_epi8(x) == 0xFFFF; }

INLINE int before_ff(V x)
{
    unsigned found = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_set1_epi8(-1)));
    return found ? __builtin_ctz(found) : 16;
}

INLINE void store_eights(V x, uint8_t *const *to, int64_t offset, int64_t stride)
{
    store_parts(x, to[0] + offset, to[0] + offset + stride);
}

/* Store four pixels without their fourth bytes, in pairs. Writes two bytes more than that. */
INLINE void store_thirds(uint8_t *out, V x)
{
    const V first = _mm_set1_epi64x(0xFFFFFF), second = _mm_set1_epi64x(0xFFFFFF000000);
    x = or(and(x, first), and(_mm_srli_epi64(x, 8), second));
    store_parts(x, out, out + 6);
}

#else

typedef int16x8_t V;
#define OP(name) neon_##name
#define AS8(x) vreinterpretq_s8_s16(x)
#define AS32(x) vreinterpretq_s32_s16(x)
#define AS64(x) vreinterpretq_s64_s16(x)
#define OF8(x) vreinterpretq_s16_s8(x)
#define OF32(x) vreinterpretq_s16_s32(x)
#define OF64(x) vreinterpretq_s16_s64(x)

INLINE V load(const void *at) { return OF8(vld1q_s8((const int8_t *)at)); }
INLINE void store(void *at, V x) { vst1q_s8((int8_t *)at, AS8(x)); }
INLINE V zero(void) { return vdupq_n_s16(0); }
INLINE V xor(V a, V b) { return veorq_s16(a, b); }
INLINE V or(V a, V b) { return vorrq_s16(a, b); }
INLINE V and(V a, V b) { return vandq_s16(a, b); }
INLINE V widen(const uint8_t *at) { return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(at))); }
INLINE bool all_ones(V x) { return vminvq_u16(vreinterpretq_u16_s16(x)) == 0xFFFF; }

INLINE int before_ff(V x)
{
    uint16x8_t equal = vreinterpretq_u16_u8(vceqq_s8(AS8(x), vdupq_n_s8(-1)));
    uint64_t found = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(equal, 4)), 0); /* four bits for each byte */
    return found ? __builtin_ctzll(found) >> 2 : 16;
}

INLINE void store_eights(V x, uint8_t *const *to, int64_t offset, int64_t stride)
{
    vst1_s8((int8_t *)(to[0] + offset), vget_low_s8(AS8(x)));
    vst1_s8((int8_t *)(to[0] + offset + stride), vget_high_s8(AS8(x)));
}

/* Store four pixels without their fourth bytes. Writes four bytes more than that. */
INLINE void store_thirds(uint8_t *out, V x)
{
    static const uint8_t THREE[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    vst1q_u8(out, vqtbl1q_u8(vreinterpretq_u8_s16(x), vld1q_u8(THREE)));
}

INLINE V neon_set1_epi8(char x) { return OF8(vdupq_n_s8((int8_t)x)); }
INLINE V neon_set1_epi16(int x) { return vdupq_n_s16((int16_t)x); }
INLINE V neon_set1_epi32(int x) { return OF32(vdupq_n_s32(x)); }
INLINE V neon_add_epi16(V a, V b) { return vaddq_s16(a, b); }
INLINE V neon_sub_epi16(V a, V b) { return vsubq_s16(a, b); }
INLINE V neon_add_epi32(V a, V b) { return OF32(vaddq_s32(AS32(a), AS32(b))); }
INLINE V neon_sub_epi32(V a, V b) { return OF32(vsubq_s32(AS32(a), AS32(b))); }
INLINE V neon_mullo_epi16(V a, V b) { return vmulq_s16(a, b); }
INLINE V neon_max_epi16(V a, V b) { return vmaxq_s16(a, b); }
INLINE V neon_min_epi16(V a, V b) { return vminq_s16(a, b); }
INLINE V equal(V a, V b) { return vreinterpretq_s16_u16(vceqq_s16(a, b)); }
INLINE V greater(V a, V b) { return vreinterpretq_s16_u16(vcgtq_s16(a, b)); }
INLINE V neon_slli_epi16(V x, int bits) { return vshlq_s16(x, vdupq_n_s16((int16_t)bits)); }
INLINE V neon_srai_epi16(V x, int bits) { return vshlq_s16(x, vdupq_n_s16((int16_t)-bits)); }
INLINE V neon_srai_epi32(V x, int bits) { return OF32(vshlq_s32(AS32(x), vdupq_n_s32(-bits))); }

INLINE V neon_srli_epi16(V x, int bits)
{
    return vreinterpretq_s16_u16(vshlq_u16(vreinterpretq_u16_s16(x), vdupq_n_s16((int16_t)-bits)));
}

INLINE V neon_mulhi_epi16(V a, V b)
{
    int32x4_t lo = vmull_s16(vget_low_s16(a), vget_low_s16(b)), hi = vmull_high_s16(a, b);
    return vuzp2q_s16(OF32(lo), OF32(hi));
}

INLINE V neon_madd_epi16(V a, V b)
{
    return OF32(vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}

INLINE V neon_packs_epi32(V a, V b) { return vqmovn_high_s32(vqmovn_s32(AS32(a)), AS32(b)); }
INLINE V neon_packs_epi16(V a, V b) { return OF8(vqmovn_high_s16(vqmovn_s16(a), b)); }
INLINE V neon_packus_epi16(V a, V b) { return vreinterpretq_s16_u8(vqmovun_high_s16(vqmovun_s16(a), b)); }
INLINE V neon_unpacklo_epi8(V a, V b) { return OF8(vzip1q_s8(AS8(a), AS8(b))); }
INLINE V neon_unpackhi_epi8(V a, V b) { return OF8(vzip2q_s8(AS8(a), AS8(b))); }
INLINE V neon_unpacklo_epi16(V a, V b) { return vzip1q_s16(a, b); }
INLINE V neon_unpackhi_epi16(V a, V b) { return vzip2q_s16(a, b); }
INLINE V neon_unpacklo_epi32(V a, V b) { return OF32(vzip1q_s32(AS32(a), AS32(b))); }
INLINE V neon_unpackhi_epi32(V a, V b) { return OF32(vzip2q_s32(AS32(a), AS32(b))); }
INLINE V neon_unpacklo_epi64(V a, V b) { return OF64(vzip1q_s64(AS64(a), AS64(b))); }
INLINE V neon_unpackhi_epi64(V a, V b) { return OF64(vzip2q_s64(AS64(a), AS64(b))); }

#endif

#if !defined USE_AVX2 && !defined USE_AVX512

INLINE V repeat(const void *at) { return load(at); }
INLINE V load_parts(const int16_t *const *from, int offset) { return load(from[0] + offset); }

INLINE void store4(uint8_t *out, V even, V odd)
{
    store(out, even);
    store(out + 16, odd);
}

INLINE void store3(uint8_t *out, V even, V odd)
{
    store_thirds(out, even);
    store_thirds(out + 12, odd);
}

#endif

enum {
    LANES = sizeof(V) / 2,
    PARTS = sizeof(V) / 16 /* blocks that are transformed at once */
};
