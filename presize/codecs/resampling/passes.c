/* Both passes over an image, row by row. */

#include <stdlib.h>
#include <string.h>

#include "resampling.h"

#ifdef __x86_64__

Level best_level(void)
{
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vnni"))
        return AVX512;
    return __builtin_cpu_supports("avx2") ? AVX2 : ANY;
}

static const Kernels *kernels_of(Level level)
{
    return level == AVX512 ? &avx512_kernels : level == AVX2 ? &avx2_kernels : &any_kernels;
}

#else

Level best_level(void) { return ANY; }

static const Kernels *kernels_of(Level level)
{
    (void)level;
    return &any_kernels;
}

#endif

/* What a resize works with. */
typedef struct {
    const Image *image;
    const Table *across, *down;
    const Kernels *kernels;
    const uint8_t *end;   /* of the memory of the image */
    int64_t row_bytes;    /* of the image */
    int64_t reach;        /* bytes of a row that are read */
    int64_t padded;       /* bytes of a resized row with its padding */
    const uint8_t **rows; /* taps of a row */
    void *room;           /* for Kernels.down */
    uint8_t *copies[2];   /* rows of the image whose end others do not follow, or blends of rows */
    uint8_t *kept;        /* resized rows */
    int64_t kept_count;
} Work;

static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* Row `y`, of which `reach` bytes may be read; perhaps a copy in copies[i]. */
static const uint8_t *readable(const Work *work, int64_t y, int64_t i)
{
    const uint8_t *row = work->image->pixels + y * work->image->stride;
    return work->end - row >= work->reach ? row : memcpy(work->copies[i], row, (size_t)work->row_bytes);
}

/* The row of the result that `rows` give. */
static void blend(const Work *work, int64_t y, int64_t bytes, uint8_t *to)
{
    const int64_t taps = work->down->head->taps;
    work->rows[taps] = work->rows[taps - 1];
    work->kernels->down(work->rows, work->down->weights + y * taps, taps, bytes, to, work->room);
}

static void horizontally(const Work *work, uint8_t *out)
{
    const int64_t last = work->image->height - 1, bytes = (int64_t)work->across->head->outputs * work->image->channels;
    uint8_t *const to[2] = {work->kept, work->kept + work->padded};
    for (int64_t y = 0; y <= last; y += 2) {
        const uint8_t *const rows[2] = {readable(work, y, 0), readable(work, smaller(y + 1, last), 1)};
        work->kernels->across(work->across, rows, to);
        for (int64_t i = 0; i < 2 && y + i <= last; i++)
            memcpy(out + (y + i) * bytes, to[i], (size_t)bytes);
    }
}

static void vertically(const Work *work, uint8_t *out)
{
    const Head *down = work->down->head;
    for (int64_t y = 0; y < down->outputs; y++, out += work->row_bytes) {
        for (int64_t tap = 0; tap < down->taps; tap++)
            work->rows[tap] = work->image->pixels + (work->down->firsts[y] + tap) * work->image->stride;
        blend(work, y, work->row_bytes, out);
    }
}

/* Where resized row `y` is kept. */
static uint8_t *place_of(const Work *work, int64_t y) { return work->kept + y % work->kept_count * work->padded; }

/* Rows that no row of the result is blended of are not resized. */
static void horizontally_first(const Work *work, uint8_t *out)
{
    const Head *down = work->down->head;
    const int64_t last = work->image->height - 1, bytes = (int64_t)work->across->head->outputs * work->image->channels;
    int64_t done = 0;
    for (int64_t y = 0; y < down->outputs; y++, out += bytes) {
        const int64_t first = work->down->firsts[y];
        for (done = done < first ? first : done; done < first + down->taps; done += 2) {
            const uint8_t *const rows[2] = {readable(work, done, 0), readable(work, smaller(done + 1, last), 1)};
            uint8_t *const to[2] = {place_of(work, done), place_of(work, done + 1)};
            work->kernels->across(work->across, rows, to);
        }
        for (int64_t tap = 0; tap < down->taps; tap++)
            work->rows[tap] = place_of(work, first + tap);
        blend(work, y, bytes, out);
    }
}

/* Columns that no pixel of the result is blended of are not blended. */
static void vertically_first(const Work *work, uint8_t *out)
{
    const Head *down = work->down->head, *across = work->across->head;
    const int64_t channels = work->image->channels, bytes = across->outputs * channels;
    int64_t begin = across->inputs, end = 0;
    for (int64_t i = 0; i < across->outputs; i++) {
        begin = smaller(begin, work->across->firsts[i]);
        end = -smaller(-end, -((int64_t)work->across->firsts[i] + across->taps));
    }
    uint8_t *const to[2] = {work->kept, work->kept + work->padded};
    for (int64_t y = 0; y < down->outputs; y += 2) {
        const int64_t count = smaller(2, down->outputs - y);
        for (int64_t i = 0; i < count; i++) {
            for (int64_t tap = 0; tap < down->taps; tap++)
                work->rows[tap] = work->image->pixels + (work->down->firsts[y + i] + tap) * work->image->stride +
                                  begin * channels;
            blend(work, y + i, (end - begin) * channels, work->copies[i] + begin * channels);
        }
        const uint8_t *const rows[2] = {work->copies[0], work->copies[count - 1]};
        work->kernels->across(work->across, rows, to);
        for (int64_t i = 0; i < count; i++)
            memcpy(out + (y + i) * bytes, to[i], (size_t)bytes);
    }
}

/* A part of the memory, which `used` counts. */
static int64_t part(int64_t *used, int64_t bytes)
{
    const int64_t at = *used;
    *used += (bytes + LINE - 1) / LINE * LINE;
    return at;
}

bool resample(const Image *image, const Table *across, const Table *down, bool vertical_first, Level level, uint8_t *out)
{
    const int64_t row_bytes = image->width * image->channels, taps = down ? down->head->taps : 1;
    const int64_t last = image->stride < 0 ? 0 : image->height - 1;
    Work work = {
        .image = image,
        .across = across,
        .down = down,
        .kernels = kernels_of(level),
        .end = image->pixels + last * image->stride + row_bytes,
        .row_bytes = row_bytes,
        .reach = across ? across->head->reach : 0,
        .padded = across ? padded_bytes((int64_t)across->head->outputs * image->channels) : 0,
        .kept_count = taps + 1, /* one more than are blended: two are made at a time */
    };
    int64_t used = 0;
    const int64_t copy = row_bytes > work.reach ? row_bytes : work.reach;
    const int64_t kept = part(&used, work.kept_count * work.padded), copies[2] = {part(&used, copy), part(&used, copy)};
    const int64_t rows = part(&used, (taps + 1) * (int64_t)sizeof *work.rows), room = part(&used, 3 * (taps + 1));
    uint8_t *memory = malloc((size_t)(used + LINE));
    if (!memory)
        return false;
    uint8_t *aligned = memory + LINE - (uintptr_t)memory % LINE;
    work.kept = aligned + kept;
    work.copies[0] = aligned + copies[0];
    work.copies[1] = aligned + copies[1];
    work.rows = (const uint8_t **)(aligned + rows);
    work.room = aligned + room;
    if (!down)
        horizontally(&work, out);
    else if (!across)
        vertically(&work, out);
    else if (vertical_first)
        vertically_first(&work, out);
    else
        horizontally_first(&work, out);
    free(memory);
    return true;
}
