/* Kinds of processors that code is compiled for. */

#pragma once

typedef enum { ANY, AVX2, AVX512, LEVELS } Level;

/* Return the best level of this processor. Code for AVX512 may also use VBMI and VNNI: earlier processors with AVX-512
   lower their clock for it. */
static inline Level best_level(void)
{
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
        return ANY;
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vnni"))
        return AVX512;
    return AVX2;
#else
    return ANY;
#endif
}
