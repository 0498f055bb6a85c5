/* The decoder for any processor of the architecture, with SSE2 on x86-64 or NEON on ARM64. */

#define ENTRY decode_jpeg
#define RECODE recode_jpeg
#include "decode.h"
#include "recode.h"
