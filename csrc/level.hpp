// All kernels of one level: included once by each level_*.cpp, which sets GEMWRIGHT_LEVEL (the name of its table),
// GEMWRIGHT_LEVEL_NAME and GEMWRIGHT_LANES, and is compiled with the level's instructions.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.hpp"

namespace gemwright {

extern const Kernels GEMWRIGHT_LEVEL;

namespace {

#include "vectors.hpp"

#include "angles.hpp"

#include "codes.hpp"

#include "linear.hpp"

#include "rows.hpp"

#include "attention.hpp"

}  // namespace

const Kernels GEMWRIGHT_LEVEL = {
    GEMWRIGHT_LEVEL_NAME,
    GEMWRIGHT_LANES,
    quantize_row,
    multiply_int16,
    multiply_float,
    unpack_row,
    rms_norm,
    rotary_angles,
    rotary,
    gelu_gate,
    add,
    multiply,
    softcap,
    write_cache,
    attend_chunk,
    merge,
    finish,
};

}  // namespace gemwright
