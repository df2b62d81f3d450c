// The scratch memory of attend_chunk; the layout is attention.hpp's.
#include "kernels.hpp"

namespace gemwright {

int64_t attend_scratch_bytes(int64_t head_dim, int64_t num_rows_times_group) {
    const int64_t padded = (head_dim + 15) / 16 * 16;
    const int64_t num_floats = num_rows_times_group * (2 * padded + kScoreStride) + kTileKeys * padded;
    return (num_floats * 4 + 63) / 64 * 64;
}

}  // namespace gemwright
