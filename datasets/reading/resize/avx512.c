/* The resizer for processors with AVX-512 and its VBMI. */

#ifdef __x86_64__
#define USE_AVX512
#define ENTRY resize_avx512
#include "rows.h"
#endif
