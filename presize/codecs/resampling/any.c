/* Kernels in plain C, for every processor. */

#include "resampling.h"

enum {
    AT_A_TIME = 256 /* bytes of a row, so that the compiler vectorizes the loops */
};

static uint8_t clipped(int32_t sum)
{
    const int32_t value = (sum + (1 << (BITS - 1))) >> BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void across_row(const Table *table, const uint8_t *row, uint8_t *to)
{
    const Head *head = table->head;
    const int32_t *weights = table->weights;
    for (int64_t output = 0; output < head->outputs; output++, weights += head->taps) {
        const uint8_t *pixels = row + (int64_t)table->firsts[output] * head->channels;
        for (int32_t channel = 0; channel < head->channels; channel++) {
            int32_t sum = 0;
            for (int64_t tap = 0; tap < head->taps; tap++)
                sum += weights[tap] * pixels[tap * head->channels + channel];
            *to++ = clipped(sum);
        }
    }
}

static void across(const Table *table, const uint8_t *const row[2], uint8_t *const to[2])
{
    across_row(table, row[0], to[0]);
    across_row(table, row[1], to[1]);
}

static void down(const uint8_t *const *rows, const int32_t *weights, int64_t taps, int64_t bytes, uint8_t *to, void *room)
{
    (void)room;
    for (int64_t at = 0; at < bytes; at += AT_A_TIME) {
        const int64_t count = bytes - at < AT_A_TIME ? bytes - at : AT_A_TIME;
        int32_t sums[AT_A_TIME] = {0};
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t i = 0; i < count; i++)
                sums[i] += weights[tap] * rows[tap][at + i];
        for (int64_t i = 0; i < count; i++)
            to[at + i] = clipped(sums[i]);
    }
}

static void premultiply(const uint8_t *from, int64_t bytes, uint8_t *to)
{
    for (int64_t i = 0; i < bytes; i++) {
        const int alpha = i % 4 == 3 ? 255 : from[i | 3], product = from[i] * alpha + 128;
        to[i] = (uint8_t)((product + (product >> 8)) >> 8);
    }
}

static void unpremultiply(uint8_t *pixels, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (i % 4 < 3 && pixels[i | 3]) {
            const int color = 255 * pixels[i] / pixels[i | 3];
            pixels[i] = (uint8_t)(color < 255 ? color : 255);
        }
}

const Kernels any_kernels = {across, down, premultiply, unpremultiply};
