/* Resizes the records of tests/codecs/test_other_processors.py on the processor for which it is compiled:

       resize_records RECORDS

   Each record is ten numbers of 32 bits (height, width and channels of the image, height and width of the result, the
   filter, whether it is mirrored, whether the result is, whether the vertical pass is first, and whether the image has
   alpha), four floats (left, top, right, bottom of the box), the pixels, and the pixels of the result. Prints the
   number of records; fails at the first record with a different result. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../presize/codecs/resampling/resampling.h"

static void *read_exactly(FILE *file, size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory || fread(memory, 1, bytes, file) != bytes)
        exit(3);
    return memory;
}

static void *table_of(const Axis *axis, Table *table)
{
    int64_t bytes;
    bool is_for_us;
    void *memory = make_table(axis, &bytes, &is_for_us);
    if (!memory || !read_table(memory, bytes, axis->inputs, axis->outputs, axis->channels, axis->level, table))
        exit(3);
    return memory;
}

int main(int count, char **arguments)
{
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    if (!file)
        return 2;
    int32_t head[10];
    float box[4];
    int records = 0;
    for (; fread(head, sizeof head, 1, file) == 1 && fread(box, sizeof box, 1, file) == 1; records++) {
        const int32_t height = head[0], width = head[1], channels = head[2], to_height = head[3], to_width = head[4];
        const size_t bytes = (size_t)(to_height * to_width * channels);
        uint8_t *pixels = read_exactly(file, (size_t)(height * width * channels)), *out = malloc(bytes);
        uint8_t *expected = read_exactly(file, bytes);
        const Axis columns = {width, to_width, box[0], box[2], (Filter)head[5], channels, head[6], head[7], ANY, 0, 0, 0, 0};
        const Axis rows = {height, to_height, box[1], box[3], (Filter)head[5], 0, false, false, ANY, 0, 0, 0, 0};
        Table across, down;
        void *tables[2] = {table_of(&columns, &across), table_of(&rows, &down)};
        const Image image = {pixels, width * channels, height, width, channels, head[9]};
        if (!out || !resample(&image, &across, &down, head[8], ANY, out) || memcmp(out, expected, bytes)) {
            printf("record %d: other pixels\n", records);
            return 1;
        }
        for (int i = 0; i < 2; i++)
            free(tables[i]);
        free(expected);
        free(pixels);
        free(out);
    }
    fclose(file);
    printf("%d records\n", records);
    return 0;
}
