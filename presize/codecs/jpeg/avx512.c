/* The decoder for processors with AVX-512. */

#ifdef __x86_64__
#define USE_AVX512
#define ENTRY decode_jpeg_avx512
#include "decode.h"
#endif
