// Matrix products of one level: panels (codes.hpp) times rows. docs/kernels.md states the sums and their order.

constexpr int64_t kBlock = 256;                  // inputs unpacked at once; float products of as many are summed by themselves
constexpr int64_t kGroups = kBlock / 32;
constexpr int64_t kRowsAtOnce = 64;              // rows that share what is unpacked
constexpr int64_t kFewRows = 2;                  // as many rows take what is unpacked as it goes by
// Rows of a tile: as many accumulators as the registers hold, and enough to hide the latency of a sum.
#if defined(__AVX512F__)
constexpr int kInt16Rows = 8, kFloatRows = 12;
#else
constexpr int kInt16Rows = 4, kFloatRows = 6;
#endif

// ---- Rows as 16-bit integers ----

static void quantize_row(const float* x, int64_t width, int64_t padded_width, int16_t* codes, int32_t* sums, float* scale) {
    typedef int16_t vs_half __attribute__((vector_size(2 * GEMWRIGHT_LANES), aligned(2), may_alias));
    // As integers, floats without their sign order as their sizes do, infinity and NaN above all.
    const vi sizes = all_bits(INT32_MAX);
    vi largest_bits{};
    int64_t k = 0;
    for (; k + kLanes <= width; k += kLanes) {
        const vi bits = load_bits(x + k) & sizes, more = bits > largest_bits;
        largest_bits = (bits & more) | (largest_bits & ~more);
    }
    int32_t most_bits = 0;
    for (int i = 0; i < kLanes; i++) most_bits = std::max(most_bits, largest_bits[i]);
    for (; k < width; k++) {
        int32_t bits;
        std::memcpy(&bits, x + k, 4);
        most_bits = std::max(most_bits, bits & INT32_MAX);
    }
    float most;
    std::memcpy(&most, &most_bits, 4);
    if (most == 0 || !(most < std::numeric_limits<float>::infinity())) {
        std::memset(codes, 0, static_cast<size_t>(padded_width) * 2);
        std::memset(sums, 0, static_cast<size_t>(padded_width / 16) * 4);
        *scale = most == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();  // a row that is not finite stays so
        return;
    }
    *scale = most / 32767.0f;
    // A very small row is lifted first, so that the inverse of its scale is finite.
    const float lift = most < 1e-30f ? 0x1p64f : 1.0f, inverse = 32767.0f / (most * lift);
    for (k = 0; k + kLanes <= width; k += kLanes)
        *reinterpret_cast<vs_half*>(codes + k) = __builtin_convertvector(round_to_int(load(x + k) * all(lift) * all(inverse)), vs_half);
    for (; k < width; k++) codes[k] = static_cast<int16_t>(std::nearbyintf(x[k] * lift * inverse));
    for (; k < padded_width; k++) codes[k] = 0;
    for (k = 0; k < padded_width; k += 16) {
        int32_t sum = 0;
        for (int64_t i = k; i < k + 16; i++) sum += codes[i];
        sums[k / 16] = sum;
    }
}

GEMWRIGHT_INLINE static inline vs pair_at(const int16_t* x) {
    int32_t pair;
    std::memcpy(&pair, x, 4);
    return reinterpret_cast<vs>(all_bits(pair));
}

// Writes the outputs of a panel that the matrix has.
static inline void put_outputs(const Matrix& matrix, int64_t panel, const float* values, float factor, float* out) {
    const int64_t first = panel * kPanel, count = std::min<int64_t>(kPanel, matrix.num_outputs - first);
    if (count == kPanel) {
        for (int v = 0; v < kVectors; v++) store(out + first + v * kLanes, load(values + v * kLanes) * all(factor));
        return;
    }
    for (int64_t n = 0; n < count; n++) out[first + n] = values[n] * factor;
}

// ---- 16-bit products of few rows: the panel is unpacked as it goes by ----

// sums[r][v] += one group of rows r; codes and sums of x are those of the first row at this group.
template <Encoding e, int rows>
GEMWRIGHT_INLINE static inline void add_group_of_few(const Place& group, const int16_t* x, int64_t x_stride, const int32_t* x_sums, int64_t sums_stride, vf (&sums)[rows][kVectors]) {
    // For one row codes are multiplied where they stand, and sums are shifted instead of codes.
    constexpr bool in_place = rows == 1;
    constexpr int slots = !in_place || code_bits(e) == 8 ? 1 : code_bits(e) == 6 ? 2 : 3;
    constexpr int pairs = 16 / num_scales(e);
    constexpr int vectors = in_place ? kVectors : 2;
#pragma GCC unroll 1
    for (int v0 = 0; v0 < kVectors; v0 += vectors) {
        const auto one_part = [&](auto part) GEMWRIGHT_INLINE {
            vi dots[slots][rows][vectors] = {};
            vi totals[rows];
            for (int r = 0; r < rows; r++) {
                const int32_t* own = x_sums + r * sums_stride;
                totals[r] = all_bits(num_scales(e) == 2 ? own[part] : own[0] + own[1]);
                if constexpr (code_offset(e) != 0)
                    for (int v = 0; v < vectors; v++) dots[0][r][v] = totals[r] * -code_offset(e);
            }
            repeat<pairs>([&](auto n) GEMWRIGHT_INLINE {
                constexpr int i = pairs * part + n, s = in_place ? slot<e>(i) : 0;
                vs factors[rows];
                for (int r = 0; r < rows; r++) factors[r] = pair_at(x + r * x_stride + 2 * i);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) {
                    const auto word = [&](int c) GEMWRIGHT_INLINE { return word_of<e>(group, c, (v0 + v) * kLanes); };
                    const vs codes = reinterpret_cast<vs>(in_place ? code_in_place<e, i>(word) : code_of<e, i>(word));
                    for (int r = 0; r < rows; r++) dots[s][r][v] = add_products(codes, factors[r], dots[s][r][v]);
                }
            });
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                const int64_t output = (v0 + v) * kLanes;
                const vf scale = scale_of<e>(group, part, output);
                for (int r = 0; r < rows; r++) {
                    vi dot = dots[0][r][v];
                    if constexpr (slots > 1) dot = dot + (dots[1][r][v] >> slot_place<e>(1));
                    if constexpr (slots > 2) dot = dot + (dots[2][r][v] >> slot_place<e>(2));
                    vf& sum = sums[r][v0 + v];
                    sum = multiply_add_once(to_floats(dot), scale, sum);
                    if constexpr (has_least(e)) sum = multiply_add_once(to_floats(totals[r]), least_of<e>(group, output), sum);
                }
            }
        };
        one_part(std::integral_constant<int, 0>{});
        if constexpr (num_scales(e) == 2) one_part(std::integral_constant<int, 1>{});
        asm("" ::: "memory");  // what is loaded for two vectors is not kept for the next two: it would fill the registers
    }
}

template <Encoding e, int rows>
static void multiply_few(const Matrix& matrix, int64_t panel, const QuantizedRows& x, int64_t t, const Rows& out) {
    const uint8_t* block = matrix.panel(panel);
    const int64_t sums_stride = x.width / 16, num_blocks = matrix.width / (32 * groups_of_a_block(e));
    const int16_t* codes = x.codes + t * x.width;
    const int32_t* own = x.sums + t * sums_stride;
    vf sums[rows][kVectors] = {};
    for (int64_t b = 0; b < num_blocks; b++, block += block_bytes(e)) {
        const uint8_t* head = block + block_head_bytes(e);
        for (int g = 0; g < groups_of_a_block(e); g++, head += group_bytes(e), codes += 32, own += 2) {
            fetch_ahead<group_bytes(e)>(head);
            add_group_of_few<e, rows>({block, head}, codes, x.width, own, sums_stride, sums);
        }
    }
    for (int r = 0; r < rows; r++) put_outputs(matrix, panel, reinterpret_cast<const float*>(sums[r]), x.scales[t + r], out.row(t + r));
}

// ---- 16-bit products of many rows: a block of a panel is unpacked once ----

// Half the outputs of a group, unpacked: codes less their offset.
struct Group {
    vs codes[16][kHalfVectors];
    vf scale[2][kHalfVectors];
    vf least[kHalfVectors];
};

template <Encoding e>
static inline void unpack_group(const uint8_t* panel, int64_t g, int64_t first_output, Group& to) {
    const Place group = place_of<e>(panel, g);
#pragma GCC unroll 1
    for (int v = 0; v < kHalfVectors; v++) {
        const int64_t output = first_output + v * kLanes;
        constexpr int num_words = code_bits(e);
        vus words[num_words];
#pragma GCC unroll 8
        for (int c = 0; c < num_words; c++) words[c] = word_of<e>(group, c, output);
        const auto word = [&](int c) GEMWRIGHT_INLINE { return words[c]; };
        repeat<16>([&](auto i) GEMWRIGHT_INLINE { to.codes[i][v] = reinterpret_cast<vs>(code_of<e, i>(word)) - static_cast<int16_t>(code_offset(e)); });
        for (int part = 0; part < num_scales(e); part++) to.scale[part][v] = scale_of<e>(group, part, output);
        if constexpr (has_least(e)) to.least[v] = least_of<e>(group, output);
    }
}

// sums[r * kPanel ...] += `count` groups times `rows` rows.
template <int scales, bool least, int rows>
static void add_groups(const Group* groups, int64_t count, const int16_t* x, int64_t x_stride, const int32_t* x_sums, int64_t sums_stride, float* sums) {
    constexpr int pairs = 16 / scales;
    const int16_t* x_rows[rows];
    repeat<rows>([&](auto r) GEMWRIGHT_INLINE {
        x_rows[r] = x + r * x_stride;
        asm("" : "+r"(x_rows[r]));  // one register a row, not a table of offsets
    });
    for (int64_t g = 0; g < count; g++, x_sums += 2) {
        const Group& group = groups[g];
#pragma GCC unroll 1
        for (int part = 0; part < scales; part++) {
            vi dots[rows][kHalfVectors] = {};
#pragma GCC unroll 16
            for (int n = 0; n < pairs; n++) {
                const auto& codes = group.codes[pairs * part + n];
                repeat<rows>([&](auto r) GEMWRIGHT_INLINE {
                    const vs factors = pair_at(x_rows[r] + 32 * g + 2 * (pairs * part + n));
                    repeat<kHalfVectors>([&](auto v) GEMWRIGHT_INLINE { dots[r][v] = add_products(codes[v], factors, dots[r][v]); });
                });
            }
            repeat<rows>([&](auto r) GEMWRIGHT_INLINE {
                repeat<kHalfVectors>([&](auto v) GEMWRIGHT_INLINE {
                    float* at = sums + r * kPanel + v * kLanes;
                    vf sum = multiply_add_once(to_floats(dots[r][v]), group.scale[part][v], load(at));
                    if constexpr (least) {
                        const int32_t* own = x_sums + r * sums_stride;
                        sum = multiply_add_once(to_floats(all_bits(own[0] + own[1])), group.least[v], sum);
                    }
                    store(at, sum);
                });
            });
        }
    }
}

// Fetches the next block while this one is multiplied, a share with each tile: unpacking asks for it all at once.
struct SpreadFetch {
    const uint8_t* at;
    int64_t step;

    SpreadFetch(const uint8_t* begin, int64_t count, int64_t shares) : at(begin), step((count + shares - 1) / shares) {}
    void fetch() {
        for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(at + i, 0, 2);
        at += step;
    }
};

template <int most>
constexpr int64_t num_tiles(int64_t rows) { return (rows + most - 1) / most; }

// Calls work(rows, t) for tiles of `most` rows and one of the rest; `rows` is a constant.
template <int most, typename Work>
static inline void in_tiles(int64_t first, int64_t last, const Work& work) {
    int64_t t = first;
    for (; t + most <= last; t += most) work(std::integral_constant<int, most>{}, t);
    repeat<most - 1>([&](auto n) {
        if (last - t == n + 1) work(std::integral_constant<int, n + 1>{}, t);
    });
}

template <Encoding e>
static void multiply_many(const Matrix& matrix, int64_t panel, const QuantizedRows& x, int64_t first, int64_t last, const Rows& out, void* scratch) {
    auto* groups = static_cast<Group*>(scratch);
    auto* sums = reinterpret_cast<float*>(groups + kGroups);
    const int64_t sums_stride = x.width / 16, num_groups = matrix.width / 32;
    std::memset(sums, 0, static_cast<size_t>(last - first) * kPanel * 4);
    for (int64_t from = 0; from < num_groups; from += kGroups) {
        const int64_t here = std::min<int64_t>(kGroups, num_groups - from);
        SpreadFetch next(matrix.panel(panel) + panel_offset<e>(from + here), panel_offset<e>(kGroups), 2 * num_tiles<kInt16Rows>(last - first));
        for (int64_t half = 0; half < 2; half++) {
            for (int64_t g = 0; g < here; g++) unpack_group<e>(matrix.panel(panel), from + g, half * kHalf, groups[g]);
            in_tiles<kInt16Rows>(first, last, [&](auto rows, int64_t t) {
                next.fetch();
                add_groups<num_scales(e), has_least(e), rows>(groups, here, x.codes + t * x.width + 32 * from, x.width, x.sums + t * sums_stride + 2 * from, sums_stride,
                                                              sums + (t - first) * kPanel + half * kHalf);
            });
        }
    }
    for (int64_t t = first; t < last; t++) put_outputs(matrix, panel, sums + (t - first) * kPanel, x.scales[t], out.row(t));
}

template <Encoding e>
static void multiply_panels(const Matrix& matrix, int64_t first, int64_t last, const QuantizedRows& x, const Rows& out, void* scratch) {
    // Rows outside, so that they stay in the second cache while panels go by.
    for (int64_t t = 0; t < x.num_rows; t += kRowsAtOnce) {
        const int64_t end = std::min(x.num_rows, t + kRowsAtOnce);
        for (int64_t panel = first; panel < last; panel++) {
            if (end - t > kFewRows) multiply_many<e>(matrix, panel, x, t, end, out, scratch);
            else if (end - t == 2) multiply_few<e, 2>(matrix, panel, x, t, out);
            else multiply_few<e, 1>(matrix, panel, x, t, out);
        }
    }
}

static void multiply_int16(const Matrix& matrix, int64_t first, int64_t last, const QuantizedRows& x, const Rows& out, void* scratch) {
    with_encoding(matrix.encoding, [&](auto e) {
        if constexpr (!is_float(e)) multiply_panels<e>(matrix, first, last, x, out, scratch);  // floats have no codes: multiply_float
    });
}

// ---- Float products ----

// Few rows: values are made as the panel goes by. Vectors of outputs at once: all where the panel streams by, two where
// making values takes the registers.
template <Encoding e, int rows>
static void multiply_few_floats(const Matrix& matrix, int64_t panel, const Rows& x, int64_t t, const Rows& out) {
    constexpr int vectors = is_float(e) ? kVectors : 2;
    const uint8_t* data = matrix.panel(panel);
    vf totals[rows][kVectors] = {};
    for (int64_t k = 0; k < matrix.width; k += kBlock) {
        const int64_t count = std::min(kBlock, matrix.width - k);
#pragma GCC unroll 1
        for (int v0 = 0; v0 < kVectors; v0 += vectors) {
            vf sums[rows][vectors] = {};
            for_values<e, vectors>(data, k, count, v0 * kLanes, [&](int64_t i, const vf (&values)[vectors]) GEMWRIGHT_INLINE {
                repeat<rows>([&](auto r) GEMWRIGHT_INLINE {
                    const vf factor = all(x.row(t + r)[k + i]);
#pragma GCC unroll 4
                    for (int v = 0; v < vectors; v++) sums[r][v] = multiply_add(values[v], factor, sums[r][v]);
                });
            });
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < vectors; v++) totals[r][v0 + v] = totals[r][v0 + v] + sums[r][v];
        }
    }
    for (int r = 0; r < rows; r++) put_outputs(matrix, panel, reinterpret_cast<const float*>(totals[r]), 1.0f, out.row(t + r));
}

// totals[r * kPanel ...] += the sum, from zero, over `count` inputs of values [count][kHalf] times `rows` rows.
template <int rows>
static void add_block(const float* values, int64_t count, const float* x, int64_t stride, float* totals) {
    vf sums[rows][kHalfVectors] = {};
#pragma GCC unroll 2
    for (int64_t i = 0; i < count; i++)
        repeat<rows>([&](auto r) GEMWRIGHT_INLINE {
            const vf factor = all(x[r * stride + i]);
            repeat<kHalfVectors>([&](auto v) GEMWRIGHT_INLINE { sums[r][v] = multiply_add(load(values + i * kHalf + v * kLanes), factor, sums[r][v]); });
        });
    repeat<rows>([&](auto r) GEMWRIGHT_INLINE {
        repeat<kHalfVectors>([&](auto v) GEMWRIGHT_INLINE {
            float* at = totals + r * kPanel + v * kLanes;
            store(at, load(at) + sums[r][v]);
        });
    });
}

template <Encoding e>
static void multiply_many_floats(const Matrix& matrix, int64_t panel, const Rows& x, int64_t first, int64_t last, const Rows& out, void* scratch) {
    auto* values = static_cast<float*>(scratch);
    float* totals = values + kBlock * kHalf;
    std::memset(totals, 0, static_cast<size_t>(last - first) * kPanel * 4);
    for (int64_t k = 0; k < matrix.width; k += kBlock) {
        const int64_t count = std::min(kBlock, matrix.width - k);
        SpreadFetch next(matrix.panel(panel) + panel_offset<e>((k + count) / 32), panel_offset<e>(kGroups), 2 * num_tiles<kFloatRows>(last - first));
        for (int64_t half = 0; half < 2; half++) {
            for_values<e, kHalfVectors>(matrix.panel(panel), k, count, half * kHalf, [&](int64_t i, const vf (&made)[kHalfVectors]) GEMWRIGHT_INLINE {
                for (int v = 0; v < kHalfVectors; v++) store(values + i * kHalf + v * kLanes, made[v]);
            });
            in_tiles<kFloatRows>(first, last, [&](auto rows, int64_t t) {
                next.fetch();
                add_block<rows>(values, count, x.row(t) + k, x.stride, totals + (t - first) * kPanel + half * kHalf);
            });
        }
    }
    for (int64_t t = first; t < last; t++) put_outputs(matrix, panel, totals + (t - first) * kPanel, 1.0f, out.row(t));
}

static void multiply_float(const Matrix& matrix, int64_t first, int64_t last, const Rows& x, const Rows& out, void* scratch) {
    with_encoding(matrix.encoding, [&](auto e) {
        for (int64_t t = 0; t < x.num_rows; t += kRowsAtOnce) {
            const int64_t end = std::min(x.num_rows, t + kRowsAtOnce);
            for (int64_t panel = first; panel < last; panel++) {
                if (end - t > kFewRows) multiply_many_floats<e>(matrix, panel, x, t, end, out, scratch);
                else if (end - t == 2) multiply_few_floats<e, 2>(matrix, panel, x, t, out);
                else multiply_few_floats<e, 1>(matrix, panel, x, t, out);
            }
        }
    });
}

static void unpack_row(const Matrix& matrix, int64_t row, float factor, float* out) {
    const uint8_t* panel = matrix.panel(row / kPanel);
    const int64_t lane = row % kLanes;
    with_encoding(matrix.encoding, [&](auto e) {
        for_values<e, 1, true>(panel, 0, matrix.width, row % kPanel - lane, [&](int64_t k, const vf (&values)[1]) { out[k] = values[0][lane] * factor; });
    });
}
