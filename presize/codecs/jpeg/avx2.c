/* The decoder for processors with AVX2. */

#ifdef __x86_64__
#define USE_AVX2
#define ENTRY decode_jpeg_avx2
#define RECODE recode_jpeg_avx2
#include "decode.h"
#include "recode.h"
#endif
