// Elementwise kernels of every level that runs here against sums in double, and the row law bit for bit.
#include "half.hpp"
#include "check.hpp"

using namespace gemwright;

namespace {

std::mt19937_64 generator;

float normal(float size = 1) { return std::normal_distribution<float>(0, size)(generator); }

// Rows that lie `gap` floats apart; the gaps keep a number by which a step beyond a row is seen.
struct Matrix2 {
    int64_t num_rows, width, stride;
    Exact<float> data;

    Matrix2(int64_t rows, int64_t columns, int64_t gap) : num_rows(rows), width(columns), stride(columns + gap), data((rows - 1) * (columns + gap) + columns) {}
    Rows rows() const { return Rows{data.get(), num_rows, width, stride}; }
    float* row(int64_t t) const { return data.get() + t * stride; }
    void fill(float size) {
        for (int64_t t = 0; t < num_rows; t++)
            for (int64_t i = 0; i < width; i++) row(t)[i] = normal(size);
    }
    void copy(const Matrix2& other) {
        for (int64_t t = 0; t < num_rows; t++) std::memcpy(row(t), other.row(t), static_cast<size_t>(width) * 4);
    }
    void check_gaps(const char* what) const {
        for (int64_t t = 0; t + 1 < num_rows; t++)
            for (int64_t i = width; i < stride; i++) {
                uint32_t bits;
                std::memcpy(&bits, row(t) + i, 4);
                CHECK(bits == 0xFFFFFFFFu, "%s wrote beyond row %lld", what, static_cast<long long>(t));
            }
    }
};

void check_close(const char* level, const char* what, int64_t width, double got, double expected, double tolerance) {
    CHECK(std::fabs(got - expected) <= tolerance, "%s %s width %lld: %.9g, expected %.9g", level, what, static_cast<long long>(width), got, expected);
}

// Calls `work` on all rows at once, then row by row from rows elsewhere in memory, and compares the bits.
template <typename Work>
void check_row_law(const char* what, const Matrix2& whole, const Work& work) {
    for (int64_t t = 0; t < whole.num_rows; t++) {
        Matrix2 alone(1, whole.width, 0);
        work(t, alone);
        CHECK(same_bits(alone.row(0), whole.row(t), whole.width), "%s: row %lld alone differs", what, static_cast<long long>(t));
    }
}

void test_norm(const Kernels& level, int64_t width, int64_t groups, int64_t gap) {
    Matrix2 x(3, width * groups, gap), out(3, width * groups, gap / 2), inplace(3, width * groups, gap);
    x.fill(3);
    Exact<float> weight(width);
    for (int64_t i = 0; i < width; i++) weight[i] = normal();
    for (const float* w : {static_cast<const float*>(weight.get()), static_cast<const float*>(nullptr)}) {
        level.rms_norm(x.rows(), w, 1e-6f, width, out.rows(), 0, 3);
        for (int64_t t = 0; t < 3; t++)
            for (int64_t g = 0; g < groups; g++) {
                const float* row = x.row(t) + g * width;
                double squares = 0;
                for (int64_t i = 0; i < width; i++) squares += static_cast<double>(row[i]) * row[i];
                const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6f);
                for (int64_t i = 0; i < width; i++) {
                    const double expected = row[i] * factor * (w == nullptr ? 1.0 : w[i]);
                    check_close(level.name, "rms_norm", width, out.row(t)[g * width + i], expected, 1e-6 * std::fabs(expected));
                }
            }
        out.check_gaps("rms_norm");
        check_row_law("rms_norm", out, [&](int64_t t, Matrix2& alone) {
            std::memcpy(alone.row(0), x.row(t), static_cast<size_t>(x.width) * 4);
            level.rms_norm(alone.rows(), w, 1e-6f, width, alone.rows(), 0, 1);
        });
        inplace.copy(x);
        level.rms_norm(inplace.rows(), w, 1e-6f, width, inplace.rows(), 1, 3);
        CHECK(same_bits(inplace.row(0), x.row(0), x.width), "rms_norm touched a row before the first");
        CHECK(same_bits(inplace.row(1), out.row(1), x.width) && same_bits(inplace.row(2), out.row(2), x.width), "rms_norm in place differs");
        inplace.check_gaps("rms_norm in place");
    }
}

void test_rotary_angles(const Kernels& level, int64_t head_dim, int64_t gap) {
    const int32_t positions[] = {0, 1, 4095, 131071, 262143};
    const int64_t half = head_dim / 2;
    Exact<float> frequencies(half);
    for (int64_t i = 0; i < half; i++) frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
    Matrix2 out(5, head_dim, gap);
    level.rotary_angles(frequencies.get(), positions, out.rows(), 0, 5);
    for (int64_t t = 0; t < 5; t++)
        for (int64_t i = 0; i < half; i++) {
            const double angle = static_cast<float>(positions[t]) * frequencies[i];
            check_close(level.name, "cosine", head_dim, out.row(t)[i], std::cos(angle), 6.1e-8);
            check_close(level.name, "sine", head_dim, out.row(t)[half + i], std::sin(angle), 6.1e-8);
        }
    out.check_gaps("rotary_angles");
    check_row_law("rotary_angles", out, [&](int64_t t, Matrix2& alone) { level.rotary_angles(frequencies.get(), positions + t, alone.rows(), 0, 1); });
}

void test_rotary(const Kernels& level, int64_t head_dim, int64_t heads, int64_t gap) {
    Matrix2 x(3, head_dim * heads, gap), turned(3, head_dim * heads, gap);
    x.fill(2);
    turned.copy(x);
    Exact<float> table(3 * head_dim);
    for (int64_t t = 0; t < 3; t++)
        for (int64_t i = 0; i < head_dim / 2; i++) {
            const double angle = normal(3);
            table[t * head_dim + i] = static_cast<float>(std::cos(angle));
            table[t * head_dim + head_dim / 2 + i] = static_cast<float>(std::sin(angle));
        }
    level.rotary(turned.rows(), table.get(), head_dim, 0, 3);
    for (int64_t t = 0; t < 3; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < head_dim / 2; i++) {
                const double low = x.row(t)[h * head_dim + i], high = x.row(t)[h * head_dim + head_dim / 2 + i];
                const double cosine = table[t * head_dim + i], sine = table[t * head_dim + head_dim / 2 + i];
                const double tolerance = 2e-7 * (std::fabs(low) + std::fabs(high));
                check_close(level.name, "rotary", head_dim, turned.row(t)[h * head_dim + i], low * cosine - high * sine, tolerance);
                check_close(level.name, "rotary", head_dim, turned.row(t)[h * head_dim + head_dim / 2 + i], high * cosine + low * sine, tolerance);
            }
    turned.check_gaps("rotary");
    check_row_law("rotary", turned, [&](int64_t t, Matrix2& alone) {
        std::memcpy(alone.row(0), x.row(t), static_cast<size_t>(x.width) * 4);
        Exact<float> own(head_dim);
        std::memcpy(own.get(), table.get() + t * head_dim, static_cast<size_t>(head_dim) * 4);
        level.rotary(alone.rows(), own.get(), head_dim, 0, 1);
    });
}

void test_pairs(const Kernels& level, int64_t width, int64_t gap) {
    Matrix2 x(3, width, gap), y(3, width, gap / 3), out(3, width, gap);
    x.fill(4);
    y.fill(1);
    const auto each = [&](const char* what, auto expected, double relative) {
        for (int64_t t = 0; t < 3; t++)
            for (int64_t i = 0; i < width; i++) {
                const double value = expected(static_cast<double>(x.row(t)[i]), static_cast<double>(y.row(t)[i]), i);
                check_close(level.name, what, width, out.row(t)[i], value, relative * std::fabs(value) + 2e-36);
            }
        out.check_gaps(what);
    };
    level.gelu_gate(x.rows(), y.rows(), out.rows(), 0, 3);
    // Far below zero the result is tiny and its relative error that of an exponent of up to 87.
    each("gelu_gate", [](double a, double b, int64_t) { const double u = 0.7978845608028654 * (a + 0.044715 * a * a * a); return a / (1 + std::exp(-2 * u)) * b; }, 3e-5);
    check_row_law("gelu_gate", out, [&](int64_t t, Matrix2& alone) {
        Matrix2 gate(1, width, 0), up(1, width, 0);
        std::memcpy(gate.row(0), x.row(t), static_cast<size_t>(width) * 4);
        std::memcpy(up.row(0), y.row(t), static_cast<size_t>(width) * 4);
        level.gelu_gate(gate.rows(), up.rows(), alone.rows(), 0, 1);
    });
    level.add(x.rows(), y.rows(), out.rows(), 0, 3);
    each("add", [](double a, double b, int64_t) { return a + b; }, 6e-8);
    const float factor = normal();
    level.multiply(x.rows(), &factor, false, out.rows(), 0, 3);
    each("multiply", [&](double a, double, int64_t) { return a * factor; }, 6e-8);
    Exact<float> factors(width);
    for (int64_t i = 0; i < width; i++) factors[i] = normal();
    level.multiply(x.rows(), factors.get(), true, out.rows(), 0, 3);
    each("multiply by a vector", [&](double a, double, int64_t i) { return a * factors[i]; }, 6e-8);
    out.copy(x);
    level.multiply(out.rows(), factors.get(), true, out.rows(), 0, 3);
    each("multiply in place", [&](double a, double, int64_t i) { return a * factors[i]; }, 6e-8);
    out.copy(x);
    level.add(out.rows(), y.rows(), out.rows(), 0, 3);
    each("add in place", [](double a, double b, int64_t) { return a + b; }, 6e-8);
    const float cap = 3.5f;
    out.copy(x);
    level.softcap(out.rows(), cap, 0, 3);
    each("softcap", [&](double a, double, int64_t) { return std::tanh(a / cap) * cap; }, 5e-7);
    check_row_law("softcap", out, [&](int64_t t, Matrix2& alone) {
        std::memcpy(alone.row(0), x.row(t), static_cast<size_t>(width) * 4);
        level.softcap(alone.rows(), cap, 0, 1);
    });
}

void test_cache(const Kernels& level, int64_t width, int64_t gap) {
    Matrix2 x(4, width, gap);
    x.fill(2);
    // Ties go to the even neighbor.
    const uint32_t ties[] = {0x3F808000, 0x3F818000, 0xBF808000, 0x3F808001, 0x3F807FFF, 0x00008000, 0x7F7F7FFF, 0x80000000};
    for (int64_t i = 0; i < std::min<int64_t>(8, width); i++) std::memcpy(x.row(1) + i, &ties[i], 4);
    const int32_t slots[] = {5, 0, 6, 2};
    Exact<uint16_t> small(7 * width);
    Exact<float> wide(7 * width);
    level.write_cache(x.rows(), slots, small.get(), true, 0, 3);
    level.write_cache(x.rows(), slots, wide.get(), false, 0, 3);
    for (int64_t slot = 0; slot < 7; slot++) {
        const int64_t row = slot == 5 ? 0 : slot == 0 ? 1 : slot == 6 ? 2 : -1;
        for (int64_t i = 0; i < width; i++) {
            uint32_t bits;
            std::memcpy(&bits, &wide[slot * width + i], 4);
            if (row < 0) {
                CHECK(small[slot * width + i] == 0xFFFF && bits == 0xFFFFFFFFu, "%s wrote another slot", level.name);
            } else {
                CHECK(small[slot * width + i] == float_to_bfloat16(x.row(row)[i]), "%s write_cache bfloat16", level.name);
                CHECK(same_bits(&wide[slot * width + i], x.row(row) + i, 1), "%s write_cache float32", level.name);
            }
        }
    }
    // What is no number stays none, whatever its bits.
    const uint32_t nan = 0x7FFFFFFF;
    for (int64_t i = 0; i < width; i++) std::memcpy(x.row(0) + i, &nan, 4);
    level.write_cache(x.rows(), slots, small.get(), true, 0, 1);
    for (int64_t i = 0; i < width; i++) CHECK(std::isnan(bfloat16_to_float(small[5 * width + i])), "%s write_cache lost a NaN", level.name);
}

// exp and tanh through what uses them: gelu_gate(x) = x / (1 + exp(..)) and softcap with cap 1.
void test_functions(const Kernels& level) {
    constexpr int64_t count = 400000;
    Matrix2 x(1, count, 0);
    double worst = 0;
    for (int64_t i = 0; i < count; i++) x.row(0)[i] = static_cast<float>((static_cast<double>(i) / count - 0.5) * 2 * (i % 2 == 0 ? 12 : 0.8));
    Matrix2 out(1, count, 0);
    out.copy(x);
    level.softcap(out.rows(), 1.0f, 0, 1);
    for (int64_t i = 0; i < count; i++) {
        const double expected = std::tanh(static_cast<double>(x.row(0)[i]));
        if (expected != 0) worst = std::max(worst, std::fabs(out.row(0)[i] - expected) / std::fabs(expected));
        CHECK(std::fabs(out.row(0)[i]) <= 1, "%s |tanh| above 1", level.name);
    }
    std::printf("%s: tanh within %.3g of its value\n", level.name, worst);
    CHECK(worst < 2.5e-7, "%s tanh %.3g", level.name, worst);
    Matrix2 ones(1, count, 0);
    for (int64_t i = 0; i < count; i++) ones.row(0)[i] = 1;
    level.gelu_gate(x.rows(), ones.rows(), out.rows(), 0, 1);
    double worst_gelu = 0;
    for (int64_t i = 0; i < count; i++) {
        const double value = x.row(0)[i], u = 0.7978845608028654 * (value + 0.044715 * value * value * value);
        const double expected = value / (1 + std::exp(-2 * u));
        worst_gelu = std::max(worst_gelu, std::fabs(out.row(0)[i] - expected) / std::max(1e-3, std::fabs(expected)));
    }
    std::printf("%s: gelu within %.3g of its value (or of 0.001)\n", level.name, worst_gelu);
    CHECK(worst_gelu < 3e-6, "%s gelu %.3g", level.name, worst_gelu);
    // Ends of the range.
    const float infinity = std::numeric_limits<float>::infinity();
    const float ends[] = {0.0f, -0.0f, -10.0f, 11.0f, -1e4f, 1e4f, -1e30f, 1e30f, infinity, std::nanf("")};
    Matrix2 few(1, 10, 0), gated(1, 10, 0);
    std::memcpy(few.row(0), ends, sizeof(ends));
    level.gelu_gate(few.rows(), ones.rows(), gated.rows(), 0, 1);
    const float expected[] = {0, 0, 0, 11, 0, 1e4f, 0, 1e30f, infinity};
    for (int i = 0; i < 9; i++) CHECK(gated.row(0)[i] == expected[i] || std::fabs(gated.row(0)[i] - expected[i]) < 1e-30f, "%s gelu(%g) = %g", level.name, ends[i], gated.row(0)[i]);
    CHECK(std::isnan(gated.row(0)[9]), "%s gelu lost a NaN", level.name);
    level.softcap(few.rows(), 2.0f, 0, 1);
    for (int i = 4; i < 9; i++) CHECK(std::fabs(few.row(0)[i]) == 2.0f, "%s softcap(%g) = %g", level.name, ends[i], few.row(0)[i]);
    CHECK(std::isnan(few.row(0)[9]), "%s softcap lost a NaN", level.name);
}

// exp alone, through the merging of two partials: adding one of value 1 and score x to one of score 0 weighs it exp(x).
void test_exponential(const Kernels& level) {
    double worst = 0;
    for (int64_t i = 0; i <= 200000; i++) {
        const float x = static_cast<float>(-(i % 2 == 0 ? 87.29 : 1.0) * static_cast<double>(i) / 200000);
        float zero = 0, one = 1;
        Partial into{0.0f, 1.0f, &zero};
        level.merge(into, Partial{x, 1.0f, &one}, 1);
        const double expected = std::exp(static_cast<double>(x));
        worst = std::max(worst, std::fabs(zero - expected) / expected);
        CHECK(zero <= 1, "%s exp(%g) = %.9g", level.name, x, zero);
        if (x == 0) CHECK(zero == 1, "%s exp(0) = %.9g", level.name, zero);
    }
    float tiny = -1e-9f;
    for (int i = 0; i < 40; i++, tiny *= 0.1f) {
        float zero = 0, one = 1;
        Partial into{0.0f, 1.0f, &zero};
        level.merge(into, Partial{tiny, 1.0f, &one}, 1);
        CHECK(zero == 1, "%s exp(%g) = %.9g", level.name, tiny, zero);
    }
    float zero = 0, one = 1;
    Partial into{0.0f, 1.0f, &zero};
    level.merge(into, Partial{-1e30f, 1.0f, &one}, 1);
    CHECK(zero == 0 && into.total == 1, "%s exp(-1e30) = %g", level.name, zero);
    std::printf("%s: exp within %.3g of its value (%.2f units of 2^-24)\n", level.name, worst, worst * 16777216);
    CHECK(worst < 2.0e-7, "%s exp %.3g", level.name, worst);
}

}  // namespace

int main(int argc, char** argv) {
    generator.seed(seed_of(argc, argv));
    for (const Kernels* level : levels()) {
        for (int64_t width : {1, 7, 8, 12, 16, 24, 40, 72, 90, 128, 256, 640, 1152})
            for (int64_t gap : {0, 5}) {
                test_norm(*level, width, 1, gap);
                test_norm(*level, width, 3, gap);
                test_pairs(*level, width, gap);
                test_cache(*level, width, gap);
                if (width % 2 == 0 && width <= 512) {
                    test_rotary_angles(*level, width, gap);
                    test_rotary(*level, width, 1, gap);
                    test_rotary(*level, width, 3, gap);
                }
            }
        test_functions(*level);
        test_exponential(*level);
    }
    return report("test_rows");
}
