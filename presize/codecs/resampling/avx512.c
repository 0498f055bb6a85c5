/* The kernels for processors with AVX-512, its VBMI and VNNI. */

#ifdef __x86_64__
#define USE_AVX512
#define KERNELS avx512_kernels
#include "kernels.h"
#endif
