// x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
#define GEMWRIGHT_LEVEL kAvx512
#define GEMWRIGHT_LEVEL_NAME "avx512"
#define GEMWRIGHT_LANES 16
#include "level.hpp"
