/* Both passes over an image, row by row. */

#include <stdlib.h>
#include <string.h>

#include "resampling.h"

#ifdef __x86_64__

static const Kernels *kernels_of(Level level)
{
    return level == AVX512 ? &avx512_kernels : level == AVX2 ? &avx2_kernels : &any_kernels;
}

#else

static const Kernels *kernels_of(Level level)
{
    (void)level;
    return &any_kernels;
}

#endif

/* State of a resize. */
typedef struct {
    const Image *image;
    const Table *across, *down;
    const Kernels *kernels;
    const uint8_t *end;   /* of the memory of the image */
    int64_t row_bytes;    /* of the image */
    int64_t reach;        /* bytes of a row that kernels read */
    int64_t padded;       /* bytes of a resized row with its padding */
    const uint8_t **rows; /* taps of a row */
    void *room;           /* for Kernels.down */
    uint8_t *copies[2];   /* copies of the last rows in memory, premultiplied rows, or blends of rows */
    uint8_t *kept;        /* resized rows */
    int64_t kept_count;
    uint8_t *out;
    int64_t rows_there; /* rows of the image in memory: row y is at y modulo this number */
    int64_t resized, y; /* the next row of the image to resize, and the next row of the result to write */
} Work;

static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* Return row `y`, premultiplied if it has alpha, with `reach` readable bytes: in the image, or a copy in copies[i]. */
static const uint8_t *readable(const Work *work, int64_t y, int64_t i)
{
    const uint8_t *row = work->image->pixels + y % work->rows_there * work->image->stride;
    if (work->image->has_alpha) {
        work->kernels->premultiply(row, work->row_bytes, work->copies[i]);
        return work->copies[i];
    }
    return work->end - row >= work->reach ? row : memcpy(work->copies[i], row, (size_t)work->row_bytes);
}

/* Blend `rows` to row `y` of the result. */
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

/* Return the address of resized row `y`. */
static uint8_t *place_of(const Work *work, int64_t y) { return work->kept + y % work->kept_count * work->padded; }

/* Continue as far as the rows of the image before `end` allow; the last call must have all of them. Rows that do not
   influence the result are not resized. */
static void horizontally_first(Work *work, int64_t end)
{
    const Head *down = work->down->head;
    const int64_t last = work->image->height - 1, bytes = (int64_t)work->across->head->outputs * work->image->channels;
    for (; work->y < down->outputs; work->y++) {
        const int64_t first = work->down->firsts[work->y];
        int64_t at = work->resized < first ? first : work->resized;
        for (; at < first + down->taps; at += 2) {
            const int64_t next = smaller(at + 1, last);
            if (next >= end) {
                work->resized = at;
                return;
            }
            const uint8_t *const rows[2] = {readable(work, at, 0), readable(work, next, 1)};
            uint8_t *const to[2] = {place_of(work, at), place_of(work, at + 1)};
            work->kernels->across(work->across, rows, to);
        }
        work->resized = at;
        for (int64_t tap = 0; tap < down->taps; tap++)
            work->rows[tap] = place_of(work, first + tap);
        blend(work, work->y, bytes, work->out + work->y * bytes);
        if (work->image->has_alpha)
            work->kernels->unpremultiply(work->out + work->y * bytes, bytes);
    }
}

/* Columns that do not influence the result are not blended. */
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

/* Reserve a part of the memory, and return its offset. */
static int64_t part(int64_t *used, int64_t bytes)
{
    const int64_t at = *used;
    *used += (bytes + LINE - 1) / LINE * LINE;
    return at;
}

/* Fill `work`, and return its memory for free(); NULL if out of memory. */
static uint8_t *prepare(Work *work, const Image *image, const Table *across, const Table *down, Level level, uint8_t *out)
{
    const int64_t row_bytes = image->width * image->channels, taps = down ? down->head->taps : 1;
    const int64_t last = image->stride < 0 ? 0 : image->height - 1;
    *work = (Work){
        .image = image,
        .across = across,
        .down = down,
        .kernels = kernels_of(level),
        .end = image->pixels + last * image->stride + row_bytes,
        .row_bytes = row_bytes,
        .reach = across ? across->head->reach : 0,
        .padded = across ? padded_bytes((int64_t)across->head->outputs * image->channels) : 0,
        .kept_count = taps + 1, /* one more than are blended: rows are resized in pairs */
        .out = out,
        .rows_there = image->height,
    };
    int64_t used = 0;
    const int64_t copy = row_bytes > work->reach ? row_bytes : work->reach;
    const int64_t kept = part(&used, work->kept_count * work->padded), copies[2] = {part(&used, copy), part(&used, copy)};
    const int64_t rows = part(&used, (taps + 1) * (int64_t)sizeof *work->rows), room = part(&used, 3 * (taps + 1));
    uint8_t *memory = malloc((size_t)(used + LINE));
    if (!memory)
        return NULL;
    uint8_t *aligned = memory + LINE - (uintptr_t)memory % LINE;
    work->kept = aligned + kept;
    work->copies[0] = aligned + copies[0];
    work->copies[1] = aligned + copies[1];
    work->rows = (const uint8_t **)(aligned + rows);
    work->room = aligned + room;
    return memory;
}

bool resample(const Image *image, const Table *across, const Table *down, bool vertical_first, Level level, uint8_t *out)
{
    Work work;
    uint8_t *memory = prepare(&work, image, across, down, level, out);
    if (!memory)
        return false;
    if (!down)
        horizontally(&work, out);
    else if (!across)
        vertically(&work, out);
    else if (vertical_first)
        vertically_first(&work, out);
    else
        horizontally_first(&work, image->height);
    free(memory);
    return true;
}

/* ---- row by row ---- */

typedef struct Rows {
    RowSink sink; /* must be first: pointers to it are cast to Rows */
    struct Rows *behind;
    Image image;
    Table across, down;
    Work work;
    uint8_t *memory;
} Rows;

static void take(RowSink *sink, int64_t end)
{
    for (Rows *rows = (Rows *)sink; rows; rows = rows->behind) {
        rows->work.rows_there = sink->count;
        horizontally_first(&rows->work, end);
    }
}

RowSink *begin_rows(int64_t height, int64_t width, int32_t channels, const Table *across, const Table *down, Level level,
                    uint8_t *out, RowSink *behind)
{
    const int64_t row_bytes = width * channels, bytes = MOST_ROWS * row_bytes + across->head->reach;
    Rows *rows = calloc(1, sizeof *rows), *const next = (Rows *)behind;
    uint8_t *ring = behind ? behind->rows : malloc((size_t)bytes);
    if (rows && ring) {
        rows->behind = next;
        rows->sink = (RowSink){height, row_bytes, ring, MOST_ROWS, take};
        rows->image = (Image){ring, row_bytes, height, width, channels, false};
        rows->across = *across;
        rows->down = *down;
        rows->memory = prepare(&rows->work, &rows->image, &rows->across, &rows->down, level, out);
        rows->work.end = behind ? next->work.end : ring + bytes;
        if (rows->memory)
            return &rows->sink;
    }
    if (!behind)
        free(ring);
    free(rows);
    return NULL;
}

void end_rows(RowSink *sink)
{
    Rows *rows = (Rows *)sink;
    if (!rows->behind)
        free(sink->rows);
    free(rows->memory);
    free(rows);
}
