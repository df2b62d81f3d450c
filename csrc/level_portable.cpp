// Any processor: the baseline of the architecture.
#define GEMWRIGHT_LEVEL kPortable
#define GEMWRIGHT_LEVEL_NAME "portable"
#define GEMWRIGHT_LANES 8
#include "level.hpp"
