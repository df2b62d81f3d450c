// For tests alone: the logic of 16 lanes on processors that have no AVX-512.
#define GEMWRIGHT_LEVEL kWide
#define GEMWRIGHT_LEVEL_NAME "wide"
#define GEMWRIGHT_LANES 16
#include "../level.hpp"
