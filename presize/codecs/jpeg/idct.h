/* The inverse DCT to blocks of 8, 4 or 2 samples a side, with the sums, roundings and saturations of libjpeg-turbo's
   jidctint and jidctred in their SIMD versions. PARTS blocks at once, one in each part of the vectors.

   Each function returns false for values that occur only in damaged files, for which libjpeg-turbo's shortcuts for flat
   blocks, or its code for another processor, would overflow differently. */

#define PAIR(a, b) OP(set1_epi32)((int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))

typedef struct {
    V lo, hi; /* 32 bits: the lower and the upper four lanes of each part */
} Wide;

typedef struct {
    const int16_t *from[PARTS]; /* coefficients */
    uint8_t *to[PARTS];         /* samples */
} Blocks;

INLINE Wide rotated(V lo, V hi, V factors) { return (Wide){OP(madd_epi16)(lo, factors), OP(madd_epi16)(hi, factors)}; }
INLINE Wide plus(Wide a, Wide b) { return (Wide){OP(add_epi32)(a.lo, b.lo), OP(add_epi32)(a.hi, b.hi)}; }
INLINE Wide minus(Wide a, Wide b) { return (Wide){OP(sub_epi32)(a.lo, b.lo), OP(sub_epi32)(a.hi, b.hi)}; }

INLINE Wide shifted(V x, int bits) /* x << bits */
{
    return (Wide){OP(srai_epi32)(OP(unpacklo_epi16)(zero(), x), 16 - bits),
                  OP(srai_epi32)(OP(unpackhi_epi16)(zero(), x), 16 - bits)};
}

INLINE V rounded(V x, int bits) { return OP(srai_epi32)(OP(add_epi32)(x, OP(set1_epi32)(1 << (bits - 1))), bits); }
INLINE V descaled(Wide x, int bits) { return OP(packs_epi32)(rounded(x.lo, bits), rounded(x.hi, bits)); }

/* Return row i of each block, dequantized. */
INLINE V dequantized(const Blocks *blocks, const int16_t *quant, int i)
{
    return OP(mullo_epi16)(load_parts(blocks->from, 8 * i), repeat(quant + 8 * i));
}

/* Return all ones where x << 2 fits in 16 bits. */
INLINE V is_small(V x) { return equal(x, OP(srai_epi16)(OP(slli_epi16)(x, 2), 2)); }

/* Return all ones where no value is the largest or the smallest possible, as after saturation. */
INLINE V is_inside(const V *x, int count)
{
    V most = x[0], least = x[0];
    for (int i = 1; i < count; i++) {
        most = OP(max_epi16)(most, x[i]);
        least = OP(min_epi16)(least, x[i]);
    }
    return and(greater(OP(set1_epi16)(INT16_MAX), most), greater(least, OP(set1_epi16)(INT16_MIN)));
}

/* One pass of the Loeffler-Ligtenberg-Moschytz algorithm with 13 fractional bits, down the lanes. */
INLINE void idct_pass(V x[8], int bits)
{
    V lo = OP(unpacklo_epi16)(x[2], x[6]), hi = OP(unpackhi_epi16)(x[2], x[6]);
    Wide e3 = rotated(lo, hi, PAIR(4433 + 6270, 4433)), e2 = rotated(lo, hi, PAIR(4433, 4433 - 15137));
    Wide e0 = shifted(OP(add_epi16)(x[0], x[4]), 13), e1 = shifted(OP(sub_epi16)(x[0], x[4]), 13);
    Wide even[4] = {plus(e0, e3), plus(e1, e2), minus(e1, e2), minus(e0, e3)};

    V s3 = OP(add_epi16)(x[7], x[3]), s4 = OP(add_epi16)(x[5], x[1]);
    lo = OP(unpacklo_epi16)(s3, s4), hi = OP(unpackhi_epi16)(s3, s4);
    Wide z3 = rotated(lo, hi, PAIR(9633 - 16069, 9633)), z4 = rotated(lo, hi, PAIR(9633, 9633 - 3196));
    lo = OP(unpacklo_epi16)(x[7], x[1]), hi = OP(unpackhi_epi16)(x[7], x[1]);
    Wide o0 = plus(rotated(lo, hi, PAIR(2446 - 7373, -7373)), z3);
    Wide o3 = plus(rotated(lo, hi, PAIR(-7373, 12299 - 7373)), z4);
    lo = OP(unpacklo_epi16)(x[5], x[3]), hi = OP(unpackhi_epi16)(x[5], x[3]);
    Wide o1 = plus(rotated(lo, hi, PAIR(16819 - 20995, -20995)), z4);
    Wide o2 = plus(rotated(lo, hi, PAIR(-20995, 25172 - 20995)), z3);
    Wide odd[4] = {o3, o2, o1, o0};
    for (int i = 0; i < 4; i++) {
        x[i] = descaled(plus(even[i], odd[i]), bits);
        x[7 - i] = descaled(minus(even[i], odd[i]), bits);
    }
}

INLINE void transpose(V x[8])
{
    V a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = OP(unpacklo_epi16)(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = OP(unpackhi_epi16)(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            b[4 * i + 2 * j] = OP(unpacklo_epi32)(a[4 * i + j], a[4 * i + 2 + j]);
            b[4 * i + 2 * j + 1] = OP(unpackhi_epi32)(a[4 * i + j], a[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        x[2 * i] = OP(unpacklo_epi64)(b[i], b[4 + i]);
        x[2 * i + 1] = OP(unpackhi_epi64)(b[i], b[4 + i]);
    }
}

/* Store rows of `bytes` signed samples as unsigned ones. */
INLINE void put(V samples, int bytes, int rows, uint8_t *const *to, int64_t stride)
{
    uint8_t all[sizeof(V)];
    store(all, xor(samples, OP(set1_epi8)((char)0x80)));
    for (int part = 0; part < PARTS; part++)
        for (int y = 0; y < rows; y++)
            memcpy(to[part] + y * stride, all + 16 * part + y * bytes, (size_t)bytes);
}

TARGET static bool idct8(const Blocks *blocks, const int16_t *quant, int64_t stride)
{
    V x[8];
    for (int i = 0; i < 8; i++)
        x[i] = dequantized(blocks, quant, i);
    V sane = is_small(x[0]);
    idct_pass(x, 11);
#ifdef __aarch64__
    sane = and(sane, is_inside(x, 8)); /* NEON's narrowing does not saturate */
#endif
    transpose(x);
    idct_pass(x, 18);
    transpose(x);
    for (int i = 0; i < 8; i += 2) {
        V rows = xor(OP(packs_epi16)(x[i], x[i + 1]), OP(set1_epi8)((char)0x80));
        store_eights(rows, blocks->to, i * stride, stride);
    }
    return all_ones(sane);
}

TARGET static bool idct4(const Blocks *blocks, const int16_t *quant, int64_t stride)
{
    V x[8];
    for (int i = 0; i < 8; i++)
        x[i] = i == 4 ? zero() : dequantized(blocks, quant, i); /* row and column 4 have no influence */
    V sane = is_small(x[0]);
    const V f13 = PAIR(20995, 7373), f57 = PAIR(-4926, -4176), g13 = PAIR(8697, -17799), g57 = PAIR(11893, -1730);
    const V f26 = PAIR(15137, -6270);

    V lo = OP(unpacklo_epi16)(x[1], x[3]), hi = OP(unpackhi_epi16)(x[1], x[3]);
    Wide outer = rotated(lo, hi, f13), inner = rotated(lo, hi, g13);
    lo = OP(unpacklo_epi16)(x[5], x[7]), hi = OP(unpackhi_epi16)(x[5], x[7]);
    outer = plus(outer, rotated(lo, hi, f57));
    inner = plus(inner, rotated(lo, hi, g57));
    lo = OP(unpacklo_epi16)(x[2], x[6]), hi = OP(unpackhi_epi16)(x[2], x[6]);
    Wide even = rotated(lo, hi, f26), mean = shifted(x[0], 14);
    x[0] = descaled(plus(plus(mean, even), outer), 12);
    x[1] = descaled(plus(minus(mean, even), inner), 12);
    x[2] = descaled(minus(minus(mean, even), inner), 12);
    x[3] = descaled(minus(plus(mean, even), outer), 12);
#ifdef __aarch64__
    sane = and(sane, is_inside(x, 4));
#endif

    /* To columns: two in each half of a part. */
    V a = OP(unpacklo_epi16)(x[0], x[1]), b = OP(unpackhi_epi16)(x[0], x[1]);
    V c = OP(unpacklo_epi16)(x[2], x[3]), d = OP(unpackhi_epi16)(x[2], x[3]);
    V x01 = OP(unpacklo_epi32)(a, c), x23 = OP(unpackhi_epi32)(a, c);
    V x45 = OP(unpacklo_epi32)(b, d), x67 = OP(unpackhi_epi32)(b, d);

    V x13 = OP(unpackhi_epi16)(x01, x23), x57 = OP(unpackhi_epi16)(x45, x67), x26 = OP(unpacklo_epi16)(x23, x67);
    V far = OP(add_epi32)(OP(madd_epi16)(x13, f13), OP(madd_epi16)(x57, f57));
    V near = OP(add_epi32)(OP(madd_epi16)(x13, g13), OP(madd_epi16)(x57, g57));
    V x0 = OP(srai_epi32)(OP(unpacklo_epi16)(zero(), x01), 2);
    V add = OP(add_epi32)(x0, OP(madd_epi16)(x26, f26)), sub = OP(sub_epi32)(x0, OP(madd_epi16)(x26, f26));
    V y02 = OP(packs_epi32)(rounded(OP(add_epi32)(add, far), 19), rounded(OP(sub_epi32)(sub, near), 19));
    V y13 = OP(packs_epi32)(rounded(OP(add_epi32)(sub, near), 19), rounded(OP(sub_epi32)(add, far), 19));
    a = OP(unpacklo_epi16)(y02, y13), b = OP(unpackhi_epi16)(y02, y13);
    V rows = OP(packs_epi16)(OP(unpacklo_epi32)(a, b), OP(unpackhi_epi32)(a, b));
    put(rows, 4, 4, blocks->to, stride);
    return all_ones(sane);
}

TARGET static bool idct2(const Blocks *blocks, const int16_t *quant, int64_t stride)
{
    V x[8]; /* even rows and columns, except the first, have no influence */
    for (int i = 0; i < 8; i++)
        x[i] = i & 1 || i == 0 ? dequantized(blocks, quant, i) : zero();
    const V f13 = PAIR(29692, -10426), f57 = PAIR(6967, -5906);
    Wide odd = plus(rotated(OP(unpacklo_epi16)(x[1], x[3]), OP(unpackhi_epi16)(x[1], x[3]), f13),
                    rotated(OP(unpacklo_epi16)(x[5], x[7]), OP(unpackhi_epi16)(x[5], x[7]), f57));
    Wide mean = shifted(x[0], 15);
    V y[2] = {descaled(plus(mean, odd), 13), descaled(minus(mean, odd), 13)};
    V sane = and(is_small(x[0]), is_inside(y, 2));

    /* Both rows: the sum over their odd columns, and column 0. */
    static const int16_t FACTORS[8] = {0, 29692, 0, -10426, 0, 6967, 0, -5906};
    V factors = repeat(FACTORS);
    V a = OP(madd_epi16)(y[0], factors), b = OP(madd_epi16)(y[1], factors);
    V sums = OP(add_epi32)(OP(unpacklo_epi32)(a, b), OP(unpackhi_epi32)(a, b));
    sums = OP(add_epi32)(sums, OP(unpackhi_epi64)(sums, sums));
    V x0 = OP(srai_epi32)(OP(unpacklo_epi16)(zero(), OP(unpacklo_epi16)(y[0], y[1])), 1);
    V rows = OP(unpacklo_epi32)(OP(add_epi32)(x0, sums), OP(sub_epi32)(x0, sums));
    rows = OP(packs_epi32)(rounded(rows, 20), zero());
    put(OP(packs_epi16)(rows, zero()), 2, 2, blocks->to, stride);
    return all_ones(sane);
}

/* Transform one block with only a DC coefficient to `size` samples a side. */
TARGET static bool flatten(int16_t coefficient, int16_t quant, int size, uint8_t *to, int64_t stride)
{
    int mean = coefficient * quant, sample = ((mean + 4) >> 3) + 128;
    for (int y = 0; y < size; y++)
        memset(to + y * stride, sample < 0 ? 0 : sample > 255 ? 255 : sample, (size_t)size);
    return abs(mean) <= 4000; /* libjpeg-turbo's table of samples ends slightly above this */
}
