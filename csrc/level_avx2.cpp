// x86-64 with AVX2, FMA and F16C.
#define GEMWRIGHT_LEVEL kAvx2
#define GEMWRIGHT_LEVEL_NAME "avx2"
#define GEMWRIGHT_LANES 8
#include "level.hpp"
