// Matrix kernels of every level that runs here, for every encoding: the float32 values of stored weights and their
// products against a second reading of the stored blocks, summed in double; each row alone against the row among others,
// bit for bit; and 16-bit products bit for bit on every level.
#include <algorithm>
#include <map>
#include <string>

#include "half.hpp"
#include "check.hpp"

using namespace gemwright;

namespace {

std::mt19937_64 generator;

const char* const kNames[] = {"float32", "bfloat16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"};

bool is_float(Encoding e) { return e == Encoding::float32 || e == Encoding::bfloat16; }
bool is_k_quant(Encoding e) { return e == Encoding::q4_k || e == Encoding::q5_k || e == Encoding::q6_k; }

float half_at(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return half_to_float(bits);
}

// The value of weight k of a stored row, straight from ggml's block structs.
float value_of(Encoding e, const uint8_t* row, int64_t k) {
    const int64_t i = k % 32, n = k % 256;
    const auto nibble = [&](const uint8_t* at) { return i < 16 ? at[i] & 15 : at[i - 16] >> 4; };
    const auto fifth = [&](const uint8_t* at) { return (at[i / 8] >> (i % 8) & 1) << 4; };
    switch (e) {
        case Encoding::float32: {
            float value;
            std::memcpy(&value, row + 4 * k, 4);
            return value;
        }
        case Encoding::bfloat16: {
            uint16_t bits;
            std::memcpy(&bits, row + 2 * k, 2);
            return bfloat16_to_float(bits);
        }
        case Encoding::q4_0: {
            const uint8_t* b = row + k / 32 * 18;
            return half_at(b) * static_cast<float>(nibble(b + 2) - 8);
        }
        case Encoding::q4_1: {
            const uint8_t* b = row + k / 32 * 20;
            return half_at(b) * static_cast<float>(nibble(b + 4)) + half_at(b + 2);
        }
        case Encoding::q5_0: {
            const uint8_t* b = row + k / 32 * 22;
            return half_at(b) * static_cast<float>((nibble(b + 6) | fifth(b + 2)) - 16);
        }
        case Encoding::q5_1: {
            const uint8_t* b = row + k / 32 * 24;
            return half_at(b) * static_cast<float>(nibble(b + 8) | fifth(b + 4)) + half_at(b + 2);
        }
        case Encoding::q8_0: {
            const uint8_t* b = row + k / 32 * 34;
            return half_at(b) * static_cast<float>(static_cast<int8_t>(b[2 + i]));
        }
        case Encoding::q4_k:
        case Encoding::q5_k: {
            const uint8_t *b = row + k / 256 * (e == Encoding::q4_k ? 144 : 176), *s = b + 4;
            const int64_t g = n / 32;
            const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
            const int least = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
            const uint8_t* low = b + (e == Encoding::q4_k ? 16 : 48) + g / 2 * 32;
            int code = g % 2 ? low[i] >> 4 : low[i] & 15;
            if (e == Encoding::q5_k) code |= (b[16 + i] >> g & 1) << 4;
            return half_at(b) * static_cast<float>(scale) * static_cast<float>(code) - half_at(b + 2) * static_cast<float>(least);
        }
        case Encoding::q6_k: {
            const uint8_t* b = row + k / 256 * 210;
            const int64_t half = n / 128, quarter = n % 128 / 32;
            const uint8_t low = b[64 * half + 32 * (quarter % 2) + i], high = b[128 + 32 * half + i];
            const int code = (quarter < 2 ? low & 15 : low >> 4) | (high >> (2 * quarter) & 3) << 4;
            return half_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + n / 16])) * static_cast<float>(code - 32);
        }
    }
    return 0;
}

// Float16 scales of a weight's size, some of them subnormal, zero or negative.
uint16_t random_half() {
    const uint64_t bits = generator();
    if (bits % 50 == 0) return 0;
    if (bits % 50 == 1) return static_cast<uint16_t>(bits >> 8 & 0x83FF);
    return static_cast<uint16_t>((bits >> 8 & 0x83FF) | (5 + (bits >> 32) % 8) << 10);
}

std::vector<uint8_t> random_rows(Encoding e, int64_t outputs, int64_t inputs) {
    std::vector<uint8_t> stored(static_cast<size_t>(outputs * stored_row_bytes(e, inputs)));
    if (is_float(e)) {
        std::normal_distribution<float> normal(0, 0.05f);
        for (int64_t i = 0; i < outputs * inputs; i++) {
            const float value = normal(generator);
            const uint16_t rounded = float_to_bfloat16(value);
            if (e == Encoding::float32) std::memcpy(&stored[static_cast<size_t>(4 * i)], &value, 4);
            else std::memcpy(&stored[static_cast<size_t>(2 * i)], &rounded, 2);
        }
        return stored;
    }
    for (auto& byte : stored) byte = static_cast<uint8_t>(generator());
    const size_t block = static_cast<size_t>(stored_row_bytes(e, 256) / (is_k_quant(e) ? 1 : 8));
    for (size_t at = 0; at < stored.size(); at += block) {
        const uint16_t scale = random_half(), least = random_half();
        std::memcpy(&stored[at + (e == Encoding::q6_k ? 208 : 0)], &scale, 2);
        if (e == Encoding::q4_1 || e == Encoding::q5_1 || e == Encoding::q4_k || e == Encoding::q5_k) std::memcpy(&stored[at + 2], &least, 2);
    }
    return stored;
}

struct Case {
    Encoding encoding;
    int64_t outputs, inputs, panel_size;
    std::vector<uint8_t> stored;
    Exact<uint8_t> panels;

    Case(Encoding e, int64_t num_outputs, int64_t num_inputs)
        : encoding(e), outputs(num_outputs), inputs(num_inputs), panel_size(panel_bytes(e, num_inputs)), stored(random_rows(e, num_outputs, num_inputs)),
          panels((num_outputs + kPanel - 1) / kPanel * panel_size) {
        const int64_t row = stored_row_bytes(e, num_inputs);
        for (int64_t first = 0; first < num_outputs; first += kPanel)
            pack_panel(e, num_inputs, stored.data() + first * row, row, std::min(kPanel, num_outputs - first), panels.get() + first / kPanel * panel_size);
    }
    Matrix matrix() const { return {encoding, outputs, inputs, panel_size, panels.get()}; }
    float value(int64_t n, int64_t k) const { return value_of(encoding, stored.data() + n * stored_row_bytes(encoding, inputs), k); }
};

// Rows of activations, some of them unusual: zeros, one number that is much larger than all others, very small ones.
Exact<float> random_activations(int64_t rows, int64_t inputs) {
    Exact<float> x(rows * inputs);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t t = 0; t < rows; t++)
        for (int64_t k = 0; k < inputs; k++) {
            const float value = normal(generator);
            x[t * inputs + k] = t % 7 == 2 ? 0.0f : t % 7 == 4 ? value * 1e-33f : t % 7 == 5 && k == 3 ? 200 * value : value;
        }
    return x;
}

struct Scratch {
    void* data;

    explicit Scratch(int64_t inputs) : data(std::aligned_alloc(64, static_cast<size_t>((multiply_scratch_bytes(inputs) + 63) / 64 * 64))) {
        std::memset(data, 0xFF, static_cast<size_t>(multiply_scratch_bytes(inputs)));
    }
    ~Scratch() { std::free(data); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
};

// The product of all panels; gaps between rows of the result keep what they held.
Exact<float> product(const Kernels& level, const Case& c, const float* x, int64_t rows, bool int16) {
    constexpr int64_t kGap = 5;
    const Scratch scratch(c.inputs);
    Exact<float> wide(rows * (c.outputs + kGap)), out(rows * c.outputs);
    const Rows target{wide.get(), rows, c.outputs, c.outputs + kGap};
    const Matrix matrix = c.matrix();
    if (int16) {
        Exact<int16_t> codes(rows * c.inputs);
        Exact<int32_t> sums(rows * c.inputs / 16);
        Exact<float> scales(rows);
        for (int64_t t = 0; t < rows; t++) level.quantize_row(x + t * c.inputs, c.inputs, c.inputs, codes.get() + t * c.inputs, sums.get() + t * c.inputs / 16, scales.get() + t);
        level.multiply_int16(matrix, 0, matrix.num_panels(), {codes.get(), sums.get(), scales.get(), rows, c.inputs}, target, scratch.data);
    } else {
        // Cut into two tasks, as threads do.
        const int64_t middle = matrix.num_panels() / 2;
        const Rows source{const_cast<float*>(x), rows, c.inputs, c.inputs};
        level.multiply_float(matrix, 0, middle, source, target, scratch.data);
        level.multiply_float(matrix, middle, matrix.num_panels(), source, target, scratch.data);
    }
    for (int64_t t = 0; t < rows; t++) {
        std::memcpy(out.get() + t * c.outputs, target.row(t), static_cast<size_t>(c.outputs) * 4);
        for (int64_t i = 0; i < kGap; i++) {
            uint32_t bits;
            std::memcpy(&bits, target.row(t) + c.outputs + i, 4);
            CHECK(bits == 0xFFFFFFFFu, "%s wrote beyond the outputs of row %lld", level.name, static_cast<long long>(t));
        }
    }
    return out;
}

void test_values(const Case& c, const char* name) {
    for (const Kernels* level : levels()) {
        Exact<float> row(c.inputs), scaled(c.inputs);
        for (int64_t n = 0; n < c.outputs; n++) {
            level->unpack_row(c.matrix(), n, 1.0f, row.get());
            level->unpack_row(c.matrix(), n, 0.3f, scaled.get());
            for (int64_t k = 0; k < c.inputs; k++) {
                const float expected = c.value(n, k), expected_scaled = expected * 0.3f;
                CHECK(same_bits(row.get() + k, &expected, 1), "%s %s value (%lld, %lld): %.9g, expected %.9g", level->name, name, static_cast<long long>(n), static_cast<long long>(k),
                      row[k], expected);
                CHECK(same_bits(scaled.get() + k, &expected_scaled, 1), "%s %s value times a factor", level->name, name);
            }
        }
    }
}

void test_products(const Case& c, const char* name, int64_t rows) {
    const Exact<float> x = random_activations(rows, c.inputs);
    // Exact products and their size, and for each row the most that rounding it to 16 bits may change.
    std::vector<double> exact(static_cast<size_t>(rows * c.outputs)), size(exact.size()), rounding(exact.size());
    std::vector<double> weights(static_cast<size_t>(c.inputs));
    for (int64_t n = 0; n < c.outputs; n++) {
        double magnitude = 0;
        for (int64_t k = 0; k < c.inputs; k++) magnitude += std::fabs(weights[static_cast<size_t>(k)] = c.value(n, k));
        for (int64_t t = 0; t < rows; t++) {
            double sum = 0, absolute = 0, most = 0;
            for (int64_t k = 0; k < c.inputs; k++) {
                const double factor = x[t * c.inputs + k], term = factor * weights[static_cast<size_t>(k)];
                sum += term, absolute += std::fabs(term), most = std::max(most, std::fabs(factor));
            }
            const auto at = static_cast<size_t>(t * c.outputs + n);
            exact[at] = sum, size[at] = absolute, rounding[at] = most / 65534 * magnitude;
        }
    }
    for (int int16 = 0; int16 < (is_float(c.encoding) ? 1 : 2); int16++) {
        const float* first_level = nullptr;
        std::vector<Exact<float>> kept;
        kept.reserve(levels().size());
        for (const Kernels* level : levels()) {
            kept.push_back(product(*level, c, x.get(), rows, int16 != 0));
            const Exact<float>& out = kept.back();
            for (size_t i = 0; i < exact.size(); i++) {
                const double error = std::fabs(static_cast<double>(out[static_cast<int64_t>(i)]) - exact[i]);
                // Sums in float32 of groups whose offsets cancel: their terms are larger than what is left of them.
                const double allowed = (int16 ? 1.01 * rounding[i] + 4e-6 * (size[i] + 64 * rounding[i]) : 4e-6 * size[i]) + 1e-37;
                CHECK(error <= allowed, "%s %s %s rows %lld outputs %lld inputs %lld at %zu: %.9g, expected %.9g", level->name, name, int16 ? "int16" : "float",
                      static_cast<long long>(rows), static_cast<long long>(c.outputs), static_cast<long long>(c.inputs), i, out[static_cast<int64_t>(i)], exact[i]);
            }
            for (int64_t t = 0; t < rows; t += rows > 40 ? 1 + static_cast<int64_t>(generator() % 16) : 1) {
                const Exact<float> alone = product(*level, c, x.get() + t * c.inputs, 1, int16 != 0);
                CHECK(same_bits(alone.get(), out.get() + t * c.outputs, c.outputs), "%s %s %s: row %lld of %lld alone differs", level->name, name, int16 ? "int16" : "float",
                      static_cast<long long>(t), static_cast<long long>(rows));
            }
            if (int16) {
                if (first_level == nullptr) first_level = out.get();
                CHECK(same_bits(first_level, out.get(), rows * c.outputs), "%s %s rows %lld: other bits than %s", level->name, name, static_cast<long long>(rows), levels()[0]->name);
            }
        }
    }
}

// The largest sums that 16-bit products can make: every code and every activation at its limit.
void test_limits() {
    for (const Encoding e : {Encoding::q4_0, Encoding::q5_0, Encoding::q8_0, Encoding::q4_1, Encoding::q5_1}) {
        for (const int byte : {0x00, 0xFF, 0x7F, 0x80}) {
            Case c(e, 32, 256);
            const size_t block = static_cast<size_t>(stored_row_bytes(e, 32)), head = e == Encoding::q4_1 || e == Encoding::q5_1 ? 4 : 2;
            for (size_t i = 0; i < c.stored.size(); i++)
                if (i % block >= head) c.stored[i] = static_cast<uint8_t>(byte);
            pack_panel(e, 256, c.stored.data(), stored_row_bytes(e, 256), 32, c.panels.get());
            for (const int64_t rows : {1, 2, 5}) {
                Exact<float> x(rows * 256);
                for (int64_t i = 0; i < rows * 256; i++) x[i] = i / 256 % 2 ? -1.0f : 1.0f;  // codes of +-32767: no rounding
                for (const Kernels* level : levels()) {
                    const Exact<float> out = product(*level, c, x.get(), rows, true);
                    for (int64_t t = 0; t < rows; t++)
                        for (int64_t n = 0; n < 32; n++) {
                            double expected = 0, size = 0;
                            for (int64_t k = 0; k < 256; k++) expected += c.value(n, k) * x[t * 256 + k], size += std::fabs(c.value(n, k));
                            CHECK(std::fabs(out[t * 32 + n] - expected) <= 2e-6 * size, "%s %s byte %02x: %.9g, expected %.9g", level->name, kNames[static_cast<int>(e)], byte, out[t * 32 + n],
                                  expected);
                        }
                }
            }
        }
    }
}

// A row that holds an infinity or NaN is not turned into numbers.
void test_quantize_row() {
    for (const Kernels* level : levels()) {
        for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
            for (const int64_t place : {0, 9, 39}) {
                Exact<float> x(40);
                Exact<int16_t> codes(64);
                Exact<int32_t> sums(4);
                float scale = 0;
                for (int64_t k = 0; k < 40; k++) x[k] = static_cast<float>(k);
                x[place] = bad;
                level->quantize_row(x.get(), 40, 64, codes.get(), sums.get(), &scale);
                CHECK(std::isnan(scale), "%s: scale %g of a row with %g", level->name, scale, bad);
            }
        }
        Exact<float> x(40);
        Exact<int16_t> codes(64);
        Exact<int32_t> sums(4);
        float scale = 0, most = 0;
        for (int64_t k = 0; k < 40; k++) most = std::max(most, std::fabs(x[k] = std::normal_distribution<float>(0, 3)(generator)));
        level->quantize_row(x.get(), 40, 64, codes.get(), sums.get(), &scale);
        CHECK(scale == most / 32767.0f, "%s: scale", level->name);
        for (int64_t k = 0; k < 64; k++) {
            const double expected = k < 40 ? x[k] / (static_cast<double>(most) / 32767) : 0;
            CHECK(std::fabs(codes[k] - expected) <= 0.502, "%s: code %d of %g", level->name, codes[k], expected);
        }
        for (int64_t i = 0; i < 4; i++) {
            int32_t sum = 0;
            for (int64_t k = 16 * i; k < 16 * i + 16; k++) sum += codes[k];
            CHECK(sums[i] == sum, "%s: sum %lld", level->name, static_cast<long long>(i));
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    generator.seed(seed_of(argc, argv));
    const auto pick = [](std::vector<int64_t> from) { return from[generator() % from.size()]; };
    test_quantize_row();
    test_limits();
    for (const char* name : kNames) {
        Encoding e;
        CHECK(find_encoding(name, &e), "%s", name);
        const std::vector<int64_t> widths = is_float(e) ? std::vector<int64_t>{90, 72, 40, 12, 705, 640, 1152, 2112}
                                            : is_k_quant(e) ? std::vector<int64_t>{256, 1280, 2048}
                                                            : std::vector<int64_t>{32, 256, 640, 1152, 2048};
        for (const int64_t inputs : widths) test_values(Case(e, pick({1, 12, 33}), inputs), name);
        for (const int64_t outputs : {1, 12, 31, 32, 33, 90}) test_products(Case(e, outputs, pick(widths)), name, pick({1, 2, 3, 4, 5, 15, 16, 17, 33}));
        for (const int64_t rows : {1, 2, 3, 4, 5, 15, 16, 17, 33}) test_products(Case(e, pick({12, 33}), pick(widths)), name, rows);
        test_products(Case(e, 640, widths[0]), name, 5);
        test_products(Case(e, 33, widths[2]), name, 200);
    }
    for (const int64_t inputs : {0, 31, 33, 90}) CHECK(panel_bytes(Encoding::q4_0, inputs) == -1, "q4_0 of %lld inputs", static_cast<long long>(inputs));
    CHECK(panel_bytes(Encoding::q4_k, 128) == -1, "q4_k of 128 inputs");
    Encoding none;
    CHECK(!find_encoding("q2_k", &none) && !find_encoding("Q4_0", &none), "names that are none");
    return report("test_linear");
}
