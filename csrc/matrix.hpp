// Packed weights: a matrix of one encoding in panels of 32 outputs, as the kernels read it.
//
// A panel holds kPanel neighboring outputs (rows of the matrix) for all inputs, interleaved so that the lanes of a
// vector are outputs; the last panel is padded with outputs of value 0. docs/kernels.md has the layouts.
#pragma once

#include <cstdint>

namespace gemwright {

constexpr int64_t kPanel = 32;

enum class Encoding : int32_t { float32, bfloat16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

struct Matrix {
    Encoding encoding;
    int64_t num_outputs;   // rows of the matrix
    int64_t width;         // inputs
    int64_t panel_bytes;   // bytes of one panel
    const uint8_t* data;   // ceil(num_outputs / kPanel) panels

    int64_t num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
    const uint8_t* panel(int64_t index) const { return data + index * panel_bytes; }
};

// Bytes of a panel of `width` inputs; -1 where the encoding cannot hold such a width.
int64_t panel_bytes(Encoding encoding, int64_t width);
// Bytes of one row as it is stored in a file.
int64_t stored_row_bytes(Encoding encoding, int64_t width);
// Packs one panel from `num_rows` (up to kPanel) stored rows that lie `row_bytes` apart; missing rows become zeros.
void pack_panel(Encoding encoding, int64_t width, const uint8_t* stored, int64_t row_bytes, int64_t num_rows, uint8_t* panel);
// Name in lower case, as in GGUF ("q4_0"); false where there is none of that name.
bool find_encoding(const char* name, Encoding* encoding);

}  // namespace gemwright
