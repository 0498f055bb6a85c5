/* The weights of an axis, computed like Pillow's: in double, from a box in float. The compiler must not use fused
   operations (-ffp-contract=off). */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resampling.h"

enum {
    NOTHING = 0x80 /* a pick that returns 0 */
};

/* ---- filters ---- */

static double box(double x) { return -0.5 < x && x <= 0.5 ? 1.0 : 0.0; }

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double hamming(double x)
{
    x = fabs(x);
    if (x == 0.0)
        return 1.0;
    if (x >= 1.0)
        return 0.0;
    x *= 3.14159265358979323846;
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

static double sinc(double x)
{
    if (x == 0.0)
        return 1.0;
    x *= 3.14159265358979323846;
    return sin(x) / x;
}

static double lanczos(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

static const struct {
    double (*weight)(double x);
    double support; /* radius in pixels */
} filters[FILTERS] = {{box, 0.5}, {bilinear, 1.0}, {hamming, 1.0}, {bicubic, 2.0}, {lanczos, 3.0}};

/* ---- weights ---- */

/* Weights of each output, without trailing zeros. Firsts do not decrease. */
typedef struct {
    int32_t *firsts, *counts, *weights; /* (outputs), (outputs), (outputs, most) */
    int64_t most;
    int32_t taps; /* the largest count */
} Weights;

static void free_weights(Weights *found)
{
    free(found->firsts);
    free(found->counts);
    free(found->weights);
}

static int32_t in_fixed_point(double weight) { return (int32_t)((weight < 0 ? -0.5 : 0.5) + weight * (1 << BITS)); }

/* Compute the weights of the output around `centre`. Return false if they are too large or need skipped inputs. */
static bool weights_at(const Axis *axis, double centre, double stretch, double *exact, int32_t *weights, int32_t *first,
                       int32_t *count)
{
    const double support = filters[axis->filter].support * stretch, step = 1.0 / stretch;
    const int32_t from = centre - support + 0.5 < 0 ? 0 : (int32_t)(centre - support + 0.5);
    int32_t to = (int32_t)(centre + support + 0.5);
    if (to > axis->whole_inputs)
        to = axis->whole_inputs;
    double sum = 0.0;
    for (int32_t i = from; i < to; i++)
        sum += exact[i - from] = filters[axis->filter].weight((i - centre + 0.5) * step);
    int32_t end = to > from ? to - from : 0;
    double total = 0.0;
    for (int32_t i = 0; i < end; i++) {
        double weight = sum != 0.0 ? exact[i] / sum : exact[i];
        total += fabs(weight);
        if (total * (1 << BITS) > MOST_WEIGHT) /* before it is converted to an integer */
            return false;
        weights[i] = in_fixed_point(weight);
    }
    while (end > 0 && weights[end - 1] == 0)
        end--;
    *first = from - axis->skipped_inputs;
    *count = end;
    return *first >= 0 && *first + end <= axis->inputs;
}

/* Return false if out of memory, or with `is_for_us` false. */
static bool find_weights(const Axis *axis, Weights *found, bool *is_for_us)
{
    const double scale = (double)(axis->end - axis->begin) / axis->whole_outputs, stretch = scale < 1.0 ? 1.0 : scale;
    found->most = (int64_t)ceil(filters[axis->filter].support * stretch) * 2 + 1;
    found->taps = 1;
    const size_t outputs = (size_t)axis->outputs, most = (size_t)found->most;
    *is_for_us = outputs <= INT32_MAX / sizeof(double) / most; /* Pillow's limit */
    if (!*is_for_us)
        return false;
    found->firsts = malloc(outputs * sizeof(int32_t));
    found->counts = malloc(outputs * sizeof(int32_t));
    found->weights = calloc(outputs * most, sizeof(int32_t));
    double *exact = malloc(most * sizeof(double));
    bool done = found->firsts && found->counts && found->weights && exact;
    for (int32_t i = 0; done && i < axis->outputs; i++) {
        const double centre = axis->begin + (i + axis->skipped_outputs + 0.5) * scale;
        *is_for_us = done = weights_at(axis, centre, stretch, exact, found->weights + i * found->most, found->firsts + i,
                                       found->counts + i);
        if (done && found->counts[i] > found->taps)
            found->taps = found->counts[i];
    }
    free(exact);
    return done;
}

/* Write the same number of weights for each output, in memory order. */
static void align(const Axis *axis, const Weights *found, int32_t *firsts, int32_t *weights)
{
    const int32_t taps = found->taps;
    memset(weights, 0, (size_t)axis->outputs * (size_t)taps * sizeof *weights);
    for (int64_t i = 0; i < axis->outputs; i++) {
        const int64_t at = axis->flipped ? axis->outputs - 1 - i : i;
        const int32_t *from = found->weights + i * found->most;
        const int32_t last = axis->inputs - taps, first = found->firsts[i] < last ? found->firsts[i] : last;
        int32_t *to = weights + at * taps + (found->counts[i] ? found->firsts[i] - first : 0);
        memcpy(to, from, (size_t)found->counts[i] * sizeof *to);
        firsts[at] = axis->mirrored ? last - first : first;
        for (int32_t left = 0, right = taps - 1; axis->mirrored && left < right; left++, right--) {
            const int32_t kept = weights[at * taps + left];
            weights[at * taps + left] = weights[at * taps + right];
            weights[at * taps + right] = kept;
        }
    }
}

/* ---- for vectors ---- */

static int8_t high(int32_t weight) { return (int8_t)((weight + (1 << 15)) >> 16); }

static int16_t low(int32_t weight) { return (int16_t)(weight - high(weight) * (1 << 16)); }

/* Sizes of the parts of a table for vector kernels. */
typedef struct {
    int64_t places, lows, highs, picks;
} Sizes;

static int64_t blocks_of(const Head *head)
{
    const int64_t vector = vector_bytes(head->level), values = (int64_t)head->outputs * head->channels;
    return (values + vector - 1) / vector * 2; /* blocks of half as many values as a vector has bytes */
}

static int32_t values_of_window(const Head *head) { return window_bytes(head->level) / (head->reading == WIDE ? 4 : 2); }

static Sizes sizes_of(const Head *head)
{
    const int64_t bytes = blocks_of(head) * vector_bytes(head->level), ones = (int64_t)head->outputs * head->steps * 16;
    const int64_t places = bytes / 2 / values_of_window(head);
    switch (head->reading) {
    case LINEAR:
        return (Sizes){places, bytes / 2, bytes, bytes};
    case CLOSE:
        return (Sizes){places, bytes * head->steps, bytes * head->steps, bytes};
    case WIDE:
        return (Sizes){places, bytes * head->steps, bytes * head->steps, 2 * bytes};
    case ONES:
        return (Sizes){head->outputs, ones, ones, 16};
    default:
        return (Sizes){0};
    }
}

static int64_t bytes_of(const Head *head)
{
    const Sizes sizes = sizes_of(head);
    return (int64_t)sizeof *head + 4 * head->outputs * (1 + (int64_t)head->taps) + 4 * sizes.places + 2 * sizes.lows +
           sizes.highs + sizes.picks;
}

static void find_parts(const Head *head, Table *table)
{
    const Sizes sizes = sizes_of(head);
    table->head = head;
    table->firsts = (const int32_t *)(head + 1);
    table->weights = table->firsts + head->outputs;
    table->places = table->weights + (int64_t)head->outputs * head->taps;
    table->lows = (const int16_t *)(table->places + sizes.places);
    table->highs = (const int8_t *)(table->lows + sizes.lows);
    table->picks = (const uint8_t *)(table->highs + sizes.highs);
}

bool read_table(const void *memory, int64_t bytes, int32_t inputs, int32_t outputs, int32_t channels, Level level,
                Table *table)
{
    const Head *head = memory;
    if (bytes < (int64_t)sizeof *head || head->inputs != inputs || head->outputs != outputs ||
        head->channels != channels || head->level != (int32_t)level || bytes != bytes_of(head))
        return false;
    find_parts(head, table);
    return true;
}

static int32_t weight_of(const Table *table, int64_t output, int64_t tap)
{
    const int32_t taps = table->head->taps;
    return tap < taps ? table->weights[output * taps + tap] : 0;
}

/* A channel of a pixel of the result. */
typedef struct {
    int64_t pixel;
    int32_t channel;
} Value;

static Value value_of(const Head *head, int64_t at)
{
    const int64_t values = (int64_t)head->outputs * head->channels;
    at = at < values ? at : values - 1; /* values past the end repeat the last one */
    return (Value){at / head->channels, (int32_t)(at % head->channels)};
}

/* Return the offset of the window of a group. */
static int32_t place_of(const Table *table, int64_t group)
{
    const Head *head = table->head;
    const int32_t values = values_of_window(head);
    int32_t place = INT32_MAX;
    for (int32_t i = 0; i < values; i++) {
        const int32_t first = head->channels * table->firsts[value_of(head, group * values + i).pixel];
        place = first < place ? first : place;
    }
    return place;
}

/* Return the position in the window at `place` of the first pixel of value `i` of the group; the second is the next. */
static int32_t pick_of(const Table *table, int64_t group, int32_t i, int32_t place)
{
    const Head *head = table->head;
    const Value value = value_of(head, group * values_of_window(head) + i);
    return head->channels * table->firsts[value.pixel] + value.channel - place;
}

/* Return whether the reading is possible: the pixels of each group lie in one window. */
static bool can_be_read(const Table *table)
{
    const Head *head = table->head;
    for (int64_t output = 0; head->reading == LINEAR && output < head->outputs; output++)
        if (head->taps > 2 || !is_between(weight_of(table, output, 0), weight_of(table, output, 1)))
            return false;
    const int64_t groups = sizes_of(head).places;
    for (int64_t group = 0; group < groups; group++) {
        const int32_t place = place_of(table, group);
        for (int32_t i = 0; i < values_of_window(head); i++)
            if (pick_of(table, group, i, place) + head->channels >= window_bytes(head->level))
                return false;
    }
    return true;
}

static void fill_places(const Table *table, int32_t *places, uint8_t *picks, int32_t *reach)
{
    const Head *head = table->head;
    const int64_t groups = sizes_of(head).places;
    for (int64_t group = 0; group < groups; group++) {
        places[group] = place_of(table, group);
        for (int32_t i = 0; i < values_of_window(head); i++) {
            const int32_t pick = pick_of(table, group, i, places[group]);
            *picks++ = (uint8_t)pick;
            if (head->reading == WIDE)
                *picks++ = NOTHING;
            *picks++ = (uint8_t)(pick + head->channels);
            if (head->reading == WIDE)
                *picks++ = NOTHING;
        }
        const int32_t end = places[group] + 2 * head->channels * (head->steps - 1) + window_bytes(head->level);
        *reach = end > *reach ? end : *reach;
    }
}

/* A block has half as many values as a vector has bytes. With WIDE, low weights are in the order of values, and high
   weights in the order of words packed from both windows, in lanes of 16 bytes. With CLOSE, low weights are those of
   values with even numbers, then with odd ones. With LINEAR, only the second pixel has a low weight; high weights add
   up to 1 in units of 1 << 16. */
static void fill_groups(const Table *table, int32_t *places, int16_t *lows, int8_t *highs, uint8_t *picks, int32_t *reach)
{
    const Head *head = table->head;
    fill_places(table, places, picks, reach);
    const int64_t values = vector_bytes(head->level) / 2, half = values / 2, blocks = blocks_of(head);
    for (int64_t step = 0; step < head->steps; step++)
        for (int64_t at = 0; at < blocks * values; at++) {
            const int64_t pixel = value_of(head, at).pixel, block = at / values * values, i = at % values;
            const int32_t first = weight_of(table, pixel, 2 * step), second = weight_of(table, pixel, 2 * step + 1);
            int64_t low_at = i, high_at = i;
            if (head->reading == CLOSE)
                low_at = i % 2 * half + i / 2;
            if (head->reading == WIDE)
                high_at = i % half / 4 * 8 + i / half * 4 + i % 4;
            int8_t *to_high = highs + 2 * (step * blocks * values + block + high_at);
            to_high[0] = high(first);
            to_high[1] = high(second);
            if (head->reading == LINEAR) {
                to_high[0] = (int8_t)(high(1 << BITS) - high(second));
                lows[at] = low(second);
            } else {
                int16_t *to_low = lows + 2 * (step * blocks * values + block + low_at);
                to_low[0] = low(first);
                to_low[1] = low(second);
            }
        }
}

/* Return the taps in the 16 bytes that ONES loads: three channels take the space of four. */
static int32_t taps_of_load(int32_t channels) { return channels == 3 ? 4 : 16 / channels; }

/* Four neighbouring taps of a channel are adjacent: four for each channel, then the next four. Low weights are those of
   taps with even numbers, then with odd ones. */
static void fill_ones(const Table *table, int32_t *places, int16_t *lows, int8_t *highs, uint8_t *picks, int32_t *reach)
{
    const Head *head = table->head;
    const int32_t channels = head->channels, lane = channels == 3 ? 4 : channels, taps = taps_of_load(channels);
    for (int32_t i = 0; i < 16; i++) {
        const int32_t channel = i / 4 % lane, tap = i / 4 / lane * 4 + i % 4;
        picks[i] = channel < channels ? (uint8_t)(tap * channels + channel) : NOTHING;
    }
    for (int64_t output = 0; output < head->outputs; output++) {
        places[output] = channels * table->firsts[output];
        const int32_t end = places[output] + channels * taps * (head->steps - 1) + 16;
        *reach = end > *reach ? end : *reach;
        for (int64_t step = 0; step < head->steps; step++, lows += 16, highs += 16)
            for (int32_t i = 0; i < 16; i++) {
                const int32_t weight = weight_of(table, output, step * taps + i / 4 / lane * 4 + i % 4);
                lows[i % 2 * 8 + i / 2] = low(weight);
                highs[i] = high(weight);
            }
    }
}

static bool is_part(int32_t skipped, int32_t count, int32_t whole)
{
    return skipped >= 0 && whole <= MOST_SIDE && count <= whole && skipped <= whole - count;
}

void *make_table(const Axis *asked, int64_t *bytes, bool *is_for_us)
{
    Axis filled = *asked;
    if (!filled.whole_inputs && !filled.whole_outputs) {
        filled.whole_inputs = filled.inputs;
        filled.whole_outputs = filled.outputs;
    }
    const Axis *axis = &filled;
    *is_for_us = axis->inputs >= 1 && axis->inputs <= MOST_SIDE && axis->outputs >= 1 && axis->outputs <= MOST_SIDE &&
                 0 <= axis->begin && axis->begin < axis->end && axis->end <= axis->whole_inputs &&
                 is_part(axis->skipped_inputs, axis->inputs, axis->whole_inputs) &&
                 is_part(axis->skipped_outputs, axis->outputs, axis->whole_outputs);
    if (!*is_for_us)
        return NULL;
    Weights found = {0};
    Head head = {axis->inputs, axis->outputs, axis->channels, axis->level, 0, PLAIN, 0, 0}, *memory = NULL;
    if (find_weights(axis, &found, is_for_us)) {
        head.taps = found.taps;
        memory = malloc((size_t)bytes_of(&head));
    }
    Table table;
    if (memory) {
        *memory = head;
        find_parts(memory, &table);
        align(axis, &found, (int32_t *)table.firsts, (int32_t *)table.weights);
    }
    free_weights(&found);
    if (memory && axis->channels && axis->level != ANY) {
        for (memory->reading = LINEAR; memory->reading < ONES && !can_be_read(&table); memory->reading++)
            ;
        head.reading = memory->reading;
        const int32_t taps = head.reading == ONES ? taps_of_load(head.channels) : 2; /* per step */
        head.steps = (head.taps + taps - 1) / taps;
        void *whole = realloc(memory, (size_t)bytes_of(&head));
        if (!whole)
            free(memory);
        if ((memory = whole)) {
            *memory = head;
            find_parts(memory, &table);
            (head.reading == ONES ? fill_ones : fill_groups)(&table, (int32_t *)table.places, (int16_t *)table.lows,
                                                               (int8_t *)table.highs, (uint8_t *)table.picks,
                                                               &memory->reach);
        }
    }
    *bytes = bytes_of(&head);
    return memory;
}
