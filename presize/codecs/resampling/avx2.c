/* The kernels for processors with AVX2. */

#ifdef __x86_64__
#define KERNELS avx2_kernels
#include "kernels.h"
#endif
