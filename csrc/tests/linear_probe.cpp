// Runs the matrix kernels of every level on what comes in, for a test that knows the right values: reads stored rows
// [outputs, row bytes] and float32 rows [T, inputs]; writes, for each level, the float32 values [outputs, inputs], the
// products by 16-bit activations [T, outputs] (of quantized encodings) and by float32 ones, and the same row by row.
// Arguments: encoding, outputs, inputs, T.
#include <algorithm>

#include "check.hpp"

using namespace gemwright;

namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

void write(const std::vector<float>& values) { std::fwrite(values.data(), 4, values.size(), stdout); }

std::vector<float> product(const Kernels& level, const Matrix& matrix, const Rows& x, bool int16, void* scratch) {
    std::vector<float> out(static_cast<size_t>(x.num_rows * matrix.num_outputs), kPoison);
    const Rows target{out.data(), x.num_rows, matrix.num_outputs, matrix.num_outputs};
    if (!int16) {
        level.multiply_float(matrix, 0, matrix.num_panels(), x, target, scratch);
        return out;
    }
    std::vector<int16_t> codes(static_cast<size_t>(x.num_rows * x.width));
    std::vector<int32_t> sums(codes.size() / 16);
    std::vector<float> scales(static_cast<size_t>(x.num_rows));
    for (int64_t t = 0; t < x.num_rows; t++)
        level.quantize_row(x.row(t), x.width, x.width, &codes[t * x.width], &sums[t * x.width / 16], &scales[t]);
    level.multiply_int16(matrix, 0, matrix.num_panels(), {codes.data(), sums.data(), scales.data(), x.num_rows, x.width}, target, scratch);
    return out;
}

}  // namespace

int main(int, char** arguments) {
    Encoding encoding;
    if (!find_encoding(arguments[1], &encoding)) return 2;
    const int64_t outputs = std::atol(arguments[2]), inputs = std::atol(arguments[3]), rows = std::atol(arguments[4]);
    const int64_t row_bytes = stored_row_bytes(encoding, inputs), bytes = panel_bytes(encoding, inputs);
    std::vector<uint8_t> stored(static_cast<size_t>(outputs * row_bytes));
    std::vector<float> x(static_cast<size_t>(rows * inputs));
    if (std::fread(stored.data(), 1, stored.size(), stdin) != stored.size()) return 3;
    if (std::fread(x.data(), 4, x.size(), stdin) != x.size()) return 3;
    const int64_t panels = (outputs + kPanel - 1) / kPanel;
    std::vector<uint8_t> packed(static_cast<size_t>(panels * bytes), 0xFF);
    for (int64_t panel = 0; panel < panels; panel++)
        pack_panel(encoding, inputs, &stored[panel * kPanel * row_bytes], row_bytes, std::min(kPanel, outputs - panel * kPanel), &packed[panel * bytes]);
    const Matrix matrix{encoding, outputs, inputs, bytes, packed.data()};
    void* scratch = std::aligned_alloc(64, static_cast<size_t>((multiply_scratch_bytes(inputs) + 63) / 64 * 64));
    const bool has_codes = encoding != Encoding::float32 && encoding != Encoding::bfloat16;
    for (const Kernels* level : levels()) {
        std::vector<float> values(static_cast<size_t>(outputs * inputs), kPoison);
        for (int64_t n = 0; n < outputs; n++) level->unpack_row(matrix, n, 1.0f, &values[n * inputs]);
        write(values);
        for (int int16 = has_codes ? 1 : 0; int16 >= 0; int16--) {
            write(product(*level, matrix, {x.data(), rows, inputs, inputs}, int16, scratch));
            for (int64_t t = 0; t < rows; t++) write(product(*level, matrix, {&x[t * inputs], 1, inputs, inputs}, int16, scratch));
        }
    }
    std::free(scratch);
}
