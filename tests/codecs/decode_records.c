/* Decodes the records of tests/codecs/test_other_processors.py on the processor for which it is compiled:

       decode_records RECORDS

   Each record is twelve numbers of 32 bits (channels, scale, height, width, top, left, bottom, right, bytes of the JPEG,
   whether it is decoded, the restart interval of the recoded scan, bytes of that scan), the JPEG, the recoded scan and,
   if it is decoded, the pixels. Prints the number of records; fails at the first record with a different result. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../presize/codecs/jpeg/decoder.h"

static void *read_exactly(FILE *file, size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory || fread(memory, 1, bytes, file) != bytes)
        exit(3);
    return memory;
}

int main(int count, char **arguments)
{
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    if (!file)
        return 2;
    uint32_t head[12];
    int records = 0;
    for (; fread(head, sizeof head, 1, file) == 1; records++) {
        Box box = {head[4], head[5], head[6], head[7]};
        size_t bytes = (size_t)((box.bottom - box.top) * (box.right - box.left) * head[0]);
        uint8_t *data = read_exactly(file, head[8]), *out = malloc(bytes);
        Request request = {data, data + head[8], head[2], head[3], (int)head[1], box, (int)head[0], out, NULL};
        bool done = out && decode_with(best_level(), &request);
        if (done != (head[9] != 0)) {
            printf("record %d: %s\n", records, done ? "decoded" : "not decoded");
            return 1;
        }
        size_t room = head[8] + 8192;
        uint8_t *scan = read_exactly(file, head[11]), *found = malloc(room);
        if (!found || recode_with(best_level(), data, data + head[8], head[10], found, (int64_t)room) != head[11] ||
            memcmp(found, scan, head[11])) {
            printf("record %d: coded again otherwise\n", records);
            return 1;
        }
        free(scan);
        free(found);
        if (done) {
            uint8_t *pixels = read_exactly(file, bytes);
            if (memcmp(out, pixels, bytes)) {
                printf("record %d: other pixels\n", records);
                return 1;
            }
            free(pixels);
        }
        free(data);
        free(out);
    }
    fclose(file);
    printf("%d records\n", records);
    return 0;
}
