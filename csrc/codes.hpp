// Reads packed weights: codes as pairs of int16, scales, float32 values. docs/kernels.md draws the layouts.
//
// A packed group is 32 neighboring inputs of the 32 outputs of a panel: scales, then words of 32 bits, one for each
// output. A 16-bit half of a word holds codes of inputs of one parity, so that a mask or a shift makes pairs of int16 in
// every 32-bit lane, the codes of two neighboring inputs: what add_products takes. Sixteen pairs make a group.

constexpr int kVectors = kPanel / kLanes;        // of outputs in a panel
constexpr int64_t kHalf = kPanel / 2;            // outputs whose unpacked inputs lie together
constexpr int kHalfVectors = kHalf / kLanes;     // 2 or 1
constexpr int64_t kAheadBytes = 2048;                 // bytes of a panel that are fetched ahead

#define GEMWRIGHT_INLINE __attribute__((always_inline))

// Calls `work` with the constants 0 .. count - 1, so that what depends on them is settled by the compiler.
template <typename Work, int... i>
GEMWRIGHT_INLINE static inline void repeat_each(Work&& work, std::integer_sequence<int, i...>) { (work(std::integral_constant<int, i>{}), ...); }
template <int count, typename Work>
GEMWRIGHT_INLINE static inline void repeat(Work&& work) { repeat_each(work, std::make_integer_sequence<int, count>{}); }

template <int64_t count>
GEMWRIGHT_INLINE static inline void fetch_ahead(const uint8_t* at) {
#pragma GCC unroll 32
    for (int64_t line = 0; line < count; line += 64) __builtin_prefetch(at + kAheadBytes + line);
}

// ---- Codes ----

constexpr bool is_k_quant(Encoding e) { return e == Encoding::q4_k || e == Encoding::q5_k || e == Encoding::q6_k; }
constexpr bool has_least(Encoding e) { return e == Encoding::q4_1 || e == Encoding::q5_1 || e == Encoding::q4_k || e == Encoding::q5_k; }
constexpr int code_bits(Encoding e) {
    switch (e) {
        case Encoding::q8_0: return 8;
        case Encoding::q6_k: return 6;
        case Encoding::q5_0:
        case Encoding::q5_1:
        case Encoding::q5_k: return 5;
        default: return 4;
    }
}
// A weight is (code - offset) * scale + least.
constexpr int code_offset(Encoding e) {
    return e == Encoding::q4_0 ? 8 : e == Encoding::q5_0 ? 16 : e == Encoding::q6_k ? 32 : e == Encoding::q8_0 ? 128 : 0;
}
// Scales of a group: the first and the second 16 inputs of q6_k have their own.
constexpr int num_scales(Encoding e) { return e == Encoding::q6_k ? 2 : 1; }
constexpr int64_t words_bytes(Encoding e) { return 4 * kPanel * code_bits(e); }
// Bytes of what stands before the groups of a block, and of the scales of a group.
constexpr int64_t block_head_bytes(Encoding e) { return !is_k_quant(e) ? 0 : has_least(e) ? 4 * kPanel : 2 * kPanel; }
constexpr int64_t group_head_bytes(Encoding e) { return is_k_quant(e) || !has_least(e) ? 2 * kPanel : 4 * kPanel; }
constexpr int64_t group_bytes(Encoding e) { return group_head_bytes(e) + words_bytes(e); }
constexpr int groups_of_a_block(Encoding e) { return is_k_quant(e) ? 8 : 1; }
constexpr int64_t block_bytes(Encoding e) { return block_head_bytes(e) + groups_of_a_block(e) * group_bytes(e); }

// The bits by which code_in_place leaves pair i shifted to the left.
template <Encoding e>
constexpr int place(int i) {
    if (code_bits(e) == 4) return i % 4 == 3 ? 0 : 4 * (i % 4);
    if (code_bits(e) == 5) return i == 15 || i % 3 == 2 ? 0 : 1 + 5 * (i % 3);
    if (code_bits(e) == 6) return i % 8 < 6 && i % 2 == 0 ? 4 : 0;
    return 0;
}
// Which of up to three sums collects pair i, where codes in place are multiplied: one for each place.
template <Encoding e>
constexpr int slot_place(int s) { return s == 0 ? 0 : code_bits(e) == 5 ? 5 * s - 4 : 4 * s; }
template <Encoding e>
constexpr int slot(int i) { return place<e>(i) == 0 ? 0 : place<e>(i) == slot_place<e>(1) ? 1 : 2; }

// Pair i of a group; word(c) gives word c.
template <Encoding e, int i, typename Word>
GEMWRIGHT_INLINE static inline vus code_in_place(const Word& word) {
    if constexpr (code_bits(e) == 4) {
        const vus w = word(i / 4);
        if constexpr (i % 4 == 3) return w >> 12;
        else return w & static_cast<uint16_t>(15 << 4 * (i % 4));
    } else if constexpr (code_bits(e) == 5 && i < 15) {
        const vus w = word(i / 3);
        if constexpr (i % 3 == 2) return w >> 11;
        else return w & static_cast<uint16_t>(31 << (1 + 5 * (i % 3)));
    } else if constexpr (code_bits(e) == 5) {
        // The last pair has its bits in the lowest of the five words.
        vus code = word(4) & 1;
        repeat<4>([&](auto n) GEMWRIGHT_INLINE { code = (code + code) | (word(3 - n) & 1); });
        return code;
    } else if constexpr (code_bits(e) == 6) {
        constexpr int half = i / 8, m = i % 8;
        // The last two pairs of a half have their bits in the lowest four of its three words.
        if constexpr (m == 6) return (word(3 * half) & 15) | (word(3 * half + 1) & 3) << 4;
        else if constexpr (m == 7) return (word(3 * half + 2) & 15) | (word(3 * half + 1) & 12) << 2;
        else if constexpr (m % 2 == 1) return word(3 * half + m / 2) >> 10;
        else return word(3 * half + m / 2) & 0x3F0;
    } else {
        const vus w = word(i / 2);
        if constexpr (i % 2 == 1) return w >> 8;
        else return w & 255;
    }
}
template <Encoding e, int i, typename Word>
GEMWRIGHT_INLINE static inline vus code_of(const Word& word) {
    if constexpr (place<e>(i) == 0) return code_in_place<e, i>(word);
    else return code_in_place<e, i>(word) >> place<e>(i);
}

// Where a group lies: the head of its block (k-quants), its own head, its words.
struct Place {
    const uint8_t* block;
    const uint8_t* head;
};
template <Encoding e>
static inline Place place_of(const uint8_t* panel, int64_t g) {
    const uint8_t* block = panel + g / groups_of_a_block(e) * block_bytes(e);
    return {block, block + block_head_bytes(e) + g % groups_of_a_block(e) * group_bytes(e)};
}
// Bytes of a panel before group g, as good as it needs to be known to fetch it.
template <Encoding e>
constexpr int64_t panel_offset(int64_t g) {
    if (e == Encoding::float32) return g * 32 * 4 * kPanel;
    if (e == Encoding::bfloat16) return g * 32 * 2 * kPanel;
    return g * block_bytes(e) / groups_of_a_block(e);
}
GEMWRIGHT_INLINE static inline vf halves_at(const uint8_t* at, int64_t output) { return widen_halves(reinterpret_cast<const uint16_t*>(at) + output); }

// Scale `which` of the kLanes outputs from `output` on. Products of scales are exact: they have 18 bits at most.
template <Encoding e>
GEMWRIGHT_INLINE static inline vf scale_of(const Place& group, int which, int64_t output) {
    if constexpr (e == Encoding::q6_k) return halves_at(group.block, output) * to_floats(widen_signed_bytes(reinterpret_cast<const int8_t*>(group.head) + kPanel * which + output));
    else if constexpr (is_k_quant(e)) return halves_at(group.block, output) * to_floats(widen_bytes(group.head + output));
    else return halves_at(group.head, output);
}
template <Encoding e>
GEMWRIGHT_INLINE static inline vf least_of(const Place& group, int64_t output) {
    if constexpr (is_k_quant(e)) return -(halves_at(group.block + 2 * kPanel, output) * to_floats(widen_bytes(group.head + kPanel + output)));
    else return halves_at(group.head + 2 * kPanel, output);
}
template <Encoding e>
GEMWRIGHT_INLINE static inline vus word_of(const Place& group, int c, int64_t output) {
    return reinterpret_cast<vus>(load_bits(group.head + group_head_bytes(e) + 4 * (kPanel * c + output)));
}

// ---- Values ----

// Calls work(k, values) in rising order of k for `count` inputs of a panel from input k on, which is a multiple of 32
// (of 2 for floats); values[v]: the float32 values of `vectors` vectors of outputs from `output` on, as the dequantizers
// of the format define them; of zeros only `zero_signs` keeps the sign, which no sum of products shows.
template <Encoding e, int vectors, bool zero_signs = false, typename Work>
GEMWRIGHT_INLINE static inline void for_values(const uint8_t* panel, int64_t k, int64_t count, int64_t output, const Work& work) {
    vf values[vectors];
    if constexpr (e == Encoding::float32) {
        const uint8_t* at = panel + 4 * (k * kPanel + output);
        for (int64_t i = 0; i < count; i++, at += 4 * kPanel) {
            if (output == 0) fetch_ahead<4 * kPanel>(at);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) values[v] = as_floats(load_bits(at + 4 * v * kLanes));
            work(i, values);
        }
    } else if constexpr (e == Encoding::bfloat16) {
        const uint8_t* at = panel + 4 * (k / 2 * kPanel + output);
        for (int64_t i = 0; i < count; i += 2, at += 4 * kPanel) {
            if (output == 0) fetch_ahead<4 * kPanel>(at);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) values[v] = as_floats(load_bits(at + 4 * v * kLanes) << 16);
            work(i, values);
            if (i + 1 == count) break;  // an odd width
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) values[v] = as_floats(load_bits(at + 4 * v * kLanes) & static_cast<int32_t>(0xFFFF0000));
            work(i + 1, values);
        }
    } else {
        for (int64_t i = 0; i < count; i += 32) {
            const Place group = place_of<e>(panel, (k + i) / 32);
            if (output == 0) fetch_ahead<group_bytes(e)>(group.head);
            vf scale[2][vectors], shift[2][vectors];
            for (int part = 0; part < num_scales(e); part++) {
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) {
                    scale[part][v] = scale_of<e>(group, part, output + v * kLanes);
                    // Code times scale has 24 bits at most, and so has code less offset times scale: nothing but the
                    // addition of a least value is ever rounded, here as in the dequantizers.
                    if constexpr (has_least(e)) shift[part][v] = least_of<e>(group, output + v * kLanes);
                    else shift[part][v] = scale[part][v] * all(-static_cast<float>(code_offset(e)));
                }
            }
            repeat<16>([&](auto n) GEMWRIGHT_INLINE {
                constexpr int part = num_scales(e) == 2 ? n / 8 : 0;
                vi codes[vectors];
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++) {
                    const auto word = [&](int c) GEMWRIGHT_INLINE { return word_of<e>(group, c, output + v * kLanes); };
                    codes[v] = reinterpret_cast<vi>(code_of<e, n>(word));
                }
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
#pragma GCC unroll 4
                    for (int v = 0; v < vectors; v++) {
                        const vi code = h == 0 ? codes[v] & 0xFFFF : codes[v] >> 16;
                        if constexpr (zero_signs && !has_least(e)) values[v] = to_floats(code - code_offset(e)) * scale[part][v];
                        else values[v] = multiply_add(to_floats(code), scale[part][v], shift[part][v]);
                    }
                    work(i + 2 * n + h, values);
                }
            });
        }
    }
}

// Calls work with the encoding as a constant.
template <typename Work>
static inline void with_encoding(Encoding encoding, const Work& work) {
    switch (encoding) {
        case Encoding::float32: return work(std::integral_constant<Encoding, Encoding::float32>{});
        case Encoding::bfloat16: return work(std::integral_constant<Encoding, Encoding::bfloat16>{});
        case Encoding::q4_0: return work(std::integral_constant<Encoding, Encoding::q4_0>{});
        case Encoding::q4_1: return work(std::integral_constant<Encoding, Encoding::q4_1>{});
        case Encoding::q5_0: return work(std::integral_constant<Encoding, Encoding::q5_0>{});
        case Encoding::q5_1: return work(std::integral_constant<Encoding, Encoding::q5_1>{});
        case Encoding::q8_0: return work(std::integral_constant<Encoding, Encoding::q8_0>{});
        case Encoding::q4_k: return work(std::integral_constant<Encoding, Encoding::q4_k>{});
        case Encoding::q5_k: return work(std::integral_constant<Encoding, Encoding::q5_k>{});
        case Encoding::q6_k: return work(std::integral_constant<Encoding, Encoding::q6_k>{});
    }
}
constexpr bool is_float(Encoding e) { return e == Encoding::float32 || e == Encoding::bfloat16; }
