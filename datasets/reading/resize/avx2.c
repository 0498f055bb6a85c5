/* The resizer for processors with AVX2. */

#ifdef __x86_64__
#define ENTRY resize_avx2
#include "rows.h"
#endif
