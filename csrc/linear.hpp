// Matrix products of one level: packed weights times rows.
//
// A packed group is 32 neighboring inputs of the 32 outputs of a panel; words of 32 bits, one for each output:
//   q4_0 [scales: 32 float16][nibbles: 4 x 32 words]       q4_1 has 32 float16 minima behind the scales
//   q5_0, q5_1: the same with [fifth bits: 32 words] before the nibbles
//   q8_0 [scales][bytes: 8 x 32 words]
//   q4_k, q5_k, of 256 inputs: [scales][minima] and 8 groups of [32 bytes scales][32 bytes minima][fifth bits][nibbles]
//   q6_k, of 256 inputs: [scales] and 8 groups of [2 x 32 bytes scales][nibbles][fifth and sixth bits: 2 x 32 words]
//   float32 [inputs][32], bfloat16 [pairs of inputs][32 words]
// Which code lies where in a word says matrix.cpp; it is so that a shift and a mask make pairs of int16, the codes of
// two neighboring inputs, in every 32-bit lane.

constexpr int kVectors = kPanel / kLanes;  // of outputs in a panel
constexpr int kGroups = 8;                 // of inputs unpacked at once where several rows share them
constexpr int64_t kRowsAtOnce = 64;        // rows that share unpacked inputs
constexpr int64_t kBlock = 32 * kGroups;   // inputs whose float products are summed by themselves

// kLanes outputs of a group: value = (code - offset) * scale + least. Inputs 0..15 have scale[0], the others scale[1].
struct Unpacked {
    vs codes[16];  // codes[i]: inputs 2i and 2i + 1 of every output
    vf scale[2];
    vf least;
};

constexpr bool is_k_quant(Encoding e) { return e == Encoding::q4_k || e == Encoding::q5_k || e == Encoding::q6_k; }
constexpr bool has_fifth_bit(Encoding e) { return e == Encoding::q5_0 || e == Encoding::q5_1 || e == Encoding::q5_k; }
constexpr bool has_least(Encoding e) { return e == Encoding::q4_1 || e == Encoding::q5_1 || e == Encoding::q4_k || e == Encoding::q5_k; }
constexpr int code_offset(Encoding e) {
    return e == Encoding::q4_0 ? 8 : e == Encoding::q5_0 ? 16 : e == Encoding::q6_k ? 32 : 0;
}

// Bytes of a packed group, and of what stands before the 8 groups of a k-quant.
constexpr int64_t group_bytes(Encoding e) {
    const int64_t nibbles = 16 * kPanel, fifth = has_fifth_bit(e) ? 4 * kPanel : 0;
    switch (e) {
        case Encoding::q8_0: return 2 * kPanel + 32 * kPanel;
        case Encoding::q6_k: return 2 * kPanel + nibbles + 8 * kPanel;
        case Encoding::q4_k:
        case Encoding::q5_k: return 2 * kPanel + fifth + nibbles;
        default: return 2 * kPanel * (has_least(e) ? 2 : 1) + fifth + nibbles;
    }
}
constexpr int64_t head_bytes(Encoding e) {
    return e == Encoding::q6_k ? 2 * kPanel : is_k_quant(e) ? 4 * kPanel : 0;
}

// Unpacks vector `v` of group `g` of a panel.
template <Encoding e>
static inline void unpack(const uint8_t* panel, int64_t g, int v, Unpacked& to) {
    const uint8_t* block = panel;
    if constexpr (is_k_quant(e)) {
        block += g / 8 * (head_bytes(e) + 8 * group_bytes(e));
        g %= 8;
    }
    const uint8_t* at = block + head_bytes(e) + g * group_bytes(e);
    const int64_t output = static_cast<int64_t>(v) * kLanes;
    const auto halves = [&](const uint8_t* from) { return widen_halves(reinterpret_cast<const uint16_t*>(from) + output); };
    if constexpr (e == Encoding::q6_k) {
        const vf d = halves(block);
        for (int half = 0; half < 2; half++)
            to.scale[half] = d * to_floats(widen_signed_bytes(reinterpret_cast<const int8_t*>(at) + kPanel * half + output));
        at += 2 * kPanel;
    } else if constexpr (is_k_quant(e)) {
        to.scale[0] = to.scale[1] = halves(block) * to_floats(widen_bytes(at + output));
        to.least = -(halves(block + 2 * kPanel) * to_floats(widen_bytes(at + kPanel + output)));
        at += 2 * kPanel;
    } else {
        to.scale[0] = to.scale[1] = halves(at);
        at += 2 * kPanel;
        if constexpr (has_least(e)) {
            to.least = halves(at);
            at += 2 * kPanel;
        }
    }
    const uint8_t* words = at + 4 * output;
    if constexpr (e == Encoding::q8_0) {
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) {
            const vs word = reinterpret_cast<vs>(load_bits(words + 4 * kPanel * c));
            to.codes[2 * c] = reinterpret_cast<vs>(reinterpret_cast<vus>(word) << 8) >> 8;
            to.codes[2 * c + 1] = word >> 8;
        }
        return;
    }
    vus fifth{};
    if constexpr (has_fifth_bit(e)) {
        fifth = reinterpret_cast<vus>(load_bits(words));
        words += 4 * kPanel;
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const vus word = reinterpret_cast<vus>(load_bits(words + 4 * kPanel * c));
        vus sixth{};
        if constexpr (e == Encoding::q6_k) sixth = reinterpret_cast<vus>(load_bits(words + 16 * kPanel + 4 * kPanel * (c / 2)));
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vus code = word >> (4 * j) & 15;
            if constexpr (has_fifth_bit(e)) {
                const int bit = 4 * c + j;
                code |= (bit < 4 ? fifth << (4 - bit) : fifth >> (bit - 4)) & 16;
            }
            if constexpr (e == Encoding::q6_k) {
                const int bit = 2 * (4 * (c % 2) + j);
                code |= (bit < 4 ? sixth << (4 - bit) : sixth >> (bit - 4)) & 48;
            }
            to.codes[4 * c + j] = reinterpret_cast<vs>(code);
        }
    }
}

// sums[r] += one group's products of `count` rows; x and x_sums are those of the first row at this group.
template <Encoding e, int count>
static inline void add_group(const Unpacked& group, const int16_t* x, int64_t x_stride, const int32_t* x_sums, int64_t sums_stride, vf* sums, int sums_step) {
    for (int half = 0; half < (e == Encoding::q6_k ? 2 : 1); half++) {
        vi dot[count];
        int32_t total[count];
        for (int r = 0; r < count; r++) {
            const int32_t* own = x_sums + r * sums_stride;
            total[r] = e == Encoding::q6_k ? own[half] : own[0] + own[1];
            dot[r] = all_bits(-code_offset(e) * total[r]);
        }
        const int begin = e == Encoding::q6_k ? 8 * half : 0, end = e == Encoding::q6_k ? begin + 8 : 16;
#pragma GCC unroll 16
        for (int i = begin; i < end; i++)
            for (int r = 0; r < count; r++) {
                int32_t pair;
                std::memcpy(&pair, x + r * x_stride + 2 * i, 4);
                dot[r] = add_products(group.codes[i], reinterpret_cast<vs>(all_bits(pair)), dot[r]);
            }
        for (int r = 0; r < count; r++) {
            vf& sum = sums[r * sums_step];
            sum = multiply_add_once(to_floats(dot[r]), group.scale[half], sum);
            if constexpr (has_least(e)) sum = multiply_add_once(all(static_cast<float>(total[r])), group.least, sum);
        }
    }
}

// Writes the outputs of a panel that the matrix has.
static inline void put_outputs(const Matrix& matrix, int64_t panel, const float* values, float factor, float* out) {
    const int64_t first = panel * kPanel, count = std::min<int64_t>(kPanel, matrix.num_outputs - first);
    for (int64_t n = 0; n < count; n++) out[first + n] = values[n] * factor;
}

// `count` rows from row t on, the panel read once and unpacked as it goes.
template <Encoding e, int count>
static void multiply_few(const Matrix& matrix, int64_t panel, const QuantizedRows& x, int64_t t, const Rows& out) {
    const uint8_t* data = matrix.panel(panel);
    const int64_t sums_stride = x.width / 16;
    vf sums[count][kVectors] = {};
    for (int64_t g = 0; g < matrix.width / 32; g++)
        for (int v = 0; v < kVectors; v++) {
            Unpacked group;
            unpack<e>(data, g, v, group);
            add_group<e, count>(group, x.codes + t * x.width + 32 * g, x.width, x.sums + t * sums_stride + 2 * g, sums_stride, &sums[0][v], kVectors);
        }
    for (int r = 0; r < count; r++) put_outputs(matrix, panel, reinterpret_cast<const float*>(sums[r]), x.scales[t + r], out.row(t + r));
}

template <Encoding e>
static void multiply_many(const Matrix& matrix, int64_t panel, const QuantizedRows& x, int64_t first, int64_t last, const Rows& out, void* scratch) {
    auto* groups = static_cast<Unpacked*>(scratch);
    auto* sums = reinterpret_cast<vf*>(static_cast<uint8_t*>(scratch) + 256 * kPanel * 4);
    const int64_t sums_stride = x.width / 16, num_groups = matrix.width / 32;
    std::memset(sums, 0, static_cast<size_t>(last - first) * kPanel * 4);
    for (int64_t from = 0; from < num_groups; from += kGroups) {
        const int64_t here = std::min<int64_t>(kGroups, num_groups - from);
        for (int64_t g = 0; g < here; g++)
            for (int v = 0; v < kVectors; v++) unpack<e>(matrix.panel(panel), from + g, v, groups[g * kVectors + v]);
        for (int64_t t = first; t < last;) {
            const int64_t count = last - t >= 4 ? 4 : 1;
            for (int v = 0; v < kVectors; v++)
                for (int64_t g = 0; g < here; g++) {
                    const int16_t* codes = x.codes + t * x.width + 32 * (from + g);
                    const int32_t* own = x.sums + t * sums_stride + 2 * (from + g);
                    vf* at = sums + (t - first) * kVectors + v;
                    if (count == 4) {
                        add_group<e, 4>(groups[g * kVectors + v], codes, x.width, own, sums_stride, at, kVectors);
                    } else {
                        add_group<e, 1>(groups[g * kVectors + v], codes, x.width, own, sums_stride, at, kVectors);
                    }
                }
            t += count;
        }
    }
    for (int64_t t = first; t < last; t++)
        put_outputs(matrix, panel, reinterpret_cast<const float*>(sums + (t - first) * kVectors), x.scales[t], out.row(t));
}

template <Encoding e>
static void multiply_panels(const Matrix& matrix, int64_t first, int64_t last, const QuantizedRows& x, const Rows& out, void* scratch) {
    for (int64_t panel = first; panel < last; panel++) {
        if (x.num_rows > 4) {
            for (int64_t t = 0; t < x.num_rows; t += kRowsAtOnce)
                multiply_many<e>(matrix, panel, x, t, std::min(x.num_rows, t + kRowsAtOnce), out, scratch);
        } else if (x.num_rows == 4) {
            multiply_few<e, 4>(matrix, panel, x, 0, out);
        } else if (x.num_rows == 3) {
            multiply_few<e, 3>(matrix, panel, x, 0, out);
        } else if (x.num_rows == 2) {
            multiply_few<e, 2>(matrix, panel, x, 0, out);
        } else {
            multiply_few<e, 1>(matrix, panel, x, 0, out);
        }
    }
}

static void multiply_int16(const Matrix& matrix, int64_t first, int64_t last, const QuantizedRows& x, const Rows& out, void* scratch) {
    switch (matrix.encoding) {
        case Encoding::q4_0: return multiply_panels<Encoding::q4_0>(matrix, first, last, x, out, scratch);
        case Encoding::q4_1: return multiply_panels<Encoding::q4_1>(matrix, first, last, x, out, scratch);
        case Encoding::q5_0: return multiply_panels<Encoding::q5_0>(matrix, first, last, x, out, scratch);
        case Encoding::q5_1: return multiply_panels<Encoding::q5_1>(matrix, first, last, x, out, scratch);
        case Encoding::q8_0: return multiply_panels<Encoding::q8_0>(matrix, first, last, x, out, scratch);
        case Encoding::q4_k: return multiply_panels<Encoding::q4_k>(matrix, first, last, x, out, scratch);
        case Encoding::q5_k: return multiply_panels<Encoding::q5_k>(matrix, first, last, x, out, scratch);
        case Encoding::q6_k: return multiply_panels<Encoding::q6_k>(matrix, first, last, x, out, scratch);
        case Encoding::float32:
        case Encoding::bfloat16: break;  // have no codes: multiply_float
    }
}

// The float32 values of a group: to[k * stride] for its inputs k, as the dequantizers of the format define them.
template <Encoding e>
static inline void unpack_values(const uint8_t* panel, int64_t g, int v, float* to, int64_t stride) {
    Unpacked group;
    unpack<e>(panel, g, v, group);
    for (int i = 0; i < 16; i++) {
        const vi pair = reinterpret_cast<vi>(group.codes[i]);
        for (int h = 0; h < 2; h++) {
            const vi code = (h ? pair >> 16 : (pair << 16) >> 16) - code_offset(e);
            vf value = to_floats(code) * group.scale[i / 8];
            if constexpr (has_least(e)) value = value + group.least;
            store(to + (2 * i + h) * stride, value);
        }
    }
}

// Values of `count` inputs from input k on (a multiple of 32) of kLanes outputs: to[i * stride + lane].
static void values_of(const Matrix& matrix, int64_t panel, int64_t k, int64_t count, int v, float* to, int64_t stride) {
    const uint8_t* data = matrix.panel(panel);
    const int64_t output = static_cast<int64_t>(v) * kLanes;
    if (matrix.encoding == Encoding::float32) {
        for (int64_t i = 0; i < count; i++) store(to + i * stride, load(reinterpret_cast<const float*>(data) + (k + i) * kPanel + output));
        return;
    }
    if (matrix.encoding == Encoding::bfloat16) {
        for (int64_t i = 0; i < count; i++) {
            const vi word = load_bits(data + 4 * ((k + i) / 2 * kPanel + output));
            store(to + i * stride, as_floats((k + i) % 2 ? word & all_bits(static_cast<int32_t>(0xFFFF0000)) : word << 16));
        }
        return;
    }
    for (int64_t g = 0; g < count / 32; g++) {
        float* at = to + 32 * g * stride;
        switch (matrix.encoding) {
            case Encoding::q4_0: unpack_values<Encoding::q4_0>(data, k / 32 + g, v, at, stride); break;
            case Encoding::q4_1: unpack_values<Encoding::q4_1>(data, k / 32 + g, v, at, stride); break;
            case Encoding::q5_0: unpack_values<Encoding::q5_0>(data, k / 32 + g, v, at, stride); break;
            case Encoding::q5_1: unpack_values<Encoding::q5_1>(data, k / 32 + g, v, at, stride); break;
            case Encoding::q8_0: unpack_values<Encoding::q8_0>(data, k / 32 + g, v, at, stride); break;
            case Encoding::q4_k: unpack_values<Encoding::q4_k>(data, k / 32 + g, v, at, stride); break;
            case Encoding::q5_k: unpack_values<Encoding::q5_k>(data, k / 32 + g, v, at, stride); break;
            case Encoding::q6_k: unpack_values<Encoding::q6_k>(data, k / 32 + g, v, at, stride); break;
            case Encoding::float32:
            case Encoding::bfloat16: break;
        }
    }
}

// sums[r] += the sum, from zero, over `count` inputs of values times `num` rows (kVectors vectors of outputs each).
template <int num>
static inline void add_block(const float* values, int64_t count, const Rows& x, int64_t t, int64_t k, vf* sums) {
    const float* rows[num];
    for (int r = 0; r < num; r++) rows[r] = x.row(t + r) + k;
    for (int v = 0; v < kVectors; v += 2) {
        vf low[num] = {}, high[num] = {};
        for (int64_t i = 0; i < count; i++) {
            const vf first = load(values + i * kPanel + v * kLanes), second = load(values + i * kPanel + (v + 1) * kLanes);
            for (int r = 0; r < num; r++) {
                const vf factor = all(rows[r][i]);
                low[r] = multiply_add(first, factor, low[r]);
                high[r] = multiply_add(second, factor, high[r]);
            }
        }
        for (int r = 0; r < num; r++) {
            sums[r * kVectors + v] = sums[r * kVectors + v] + low[r];
            sums[r * kVectors + v + 1] = sums[r * kVectors + v + 1] + high[r];
        }
    }
}

static void multiply_float(const Matrix& matrix, int64_t first, int64_t last, const Rows& x, const Rows& out, void* scratch) {
    auto* unpacked = static_cast<float*>(scratch);
    auto* sums = reinterpret_cast<vf*>(unpacked + kBlock * kPanel);
    for (int64_t panel = first; panel < last; panel++)
        for (int64_t begin = 0; begin < x.num_rows; begin += kRowsAtOnce) {
            const int64_t end = std::min(x.num_rows, begin + kRowsAtOnce);
            std::memset(sums, 0, static_cast<size_t>(end - begin) * kPanel * 4);
            for (int64_t k = 0; k < matrix.width; k += kBlock) {
                const int64_t count = std::min(kBlock, matrix.width - k);
                const float* values = unpacked;
                if (matrix.encoding == Encoding::float32) {
                    values = reinterpret_cast<const float*>(matrix.panel(panel)) + k * kPanel;
                } else {
                    for (int v = 0; v < kVectors; v++) values_of(matrix, panel, k, count, v, unpacked + v * kLanes, kPanel);
                }
                for (int64_t t = begin; t < end;) {
                    vf* at = sums + (t - begin) * kVectors;
                    if (end - t >= 4) {
                        add_block<4>(values, count, x, t, k, at);
                        t += 4;
                    } else {
                        add_block<1>(values, count, x, t, k, at);
                        t += 1;
                    }
                }
            }
            for (int64_t t = begin; t < end; t++)
                put_outputs(matrix, panel, reinterpret_cast<const float*>(sums + (t - begin) * kVectors), 1.0f, out.row(t));
        }
}

static void unpack_row(const Matrix& matrix, int64_t row, float factor, float* out) {
    const int64_t panel = row / kPanel, v = row % kPanel / kLanes, lane = row % kLanes;
    float values[32 * kLanes];
    for (int64_t k = 0; k < matrix.width; k += 32) {
        const int64_t count = std::min<int64_t>(32, matrix.width - k);
        values_of(matrix, panel, k, count, static_cast<int>(v), values, kLanes);
        for (int64_t i = 0; i < count; i++) out[k + i] = values[i * kLanes + lane] * factor;
    }
}

static void quantize_row(const float* x, int64_t width, int64_t padded_width, int16_t* codes, int32_t* sums, float* scale) {
    float most = 0;
    for (int64_t k = 0; k < width; k++) most = std::max(most, std::fabs(x[k]));
    *scale = most / 32767.0f;
    const float inverse = most > 0 ? 32767.0f / most : 0.0f;
    for (int64_t k = 0; k < padded_width; k += 16) {
        int32_t sum = 0;
        for (int64_t i = k; i < k + 16; i++) {
            const float value = i < width ? x[i] * inverse : 0.0f;
            // The nearest integer, ties to even; within the range whatever the rounding of `inverse` was.
            const auto code = static_cast<int32_t>(std::nearbyintf(value));
            codes[i] = static_cast<int16_t>(std::max(-32767, std::min(32767, code)));
            sum += codes[i];
        }
        sums[k / 16] = sum;
    }
}
