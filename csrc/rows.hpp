// Elementwise work on rows of float32: norms, rotary embedding, gated GELU, sums, products, softcap, cache writes.
// Included inside a level's namespace after angles.hpp.
//
// The last elements of a row that fill no vector go through a buffer of one vector, so they are computed as all others
// are, and nothing outside a row is read or written.

static inline vf load_part(const float* p, int64_t count) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(float));
    return load(lanes);
}

static inline void store_part(float* p, vf x, int64_t count) {
    float lanes[kLanes];
    store(lanes, x);
    std::memcpy(p, lanes, static_cast<size_t>(count) * sizeof(float));
}

// The bits of bfloat16 (nearest, ties to even) in the upper halves of the lanes; the lower halves are 0. NaN stays NaN.
static inline vu round_to_bfloat16(vf x) {
    const vu bits = reinterpret_cast<vu>(x);
    const vu rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
    const vu nan = reinterpret_cast<vu>(x != x);
    return (rounded & ~nan) | (0x7FC00000u & nan);
}

// 1 / root mean square of x[width]. Four sums in flight, added in a fixed order.
static inline float inverse_rms(const float* x, int64_t width, float eps) {
    vf sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes)
        for (int j = 0; j < 4; j++) {
            const vf v = load(x + i + j * kLanes);
            sums[j] = multiply_add(v, v, sums[j]);
        }
    for (; i < width; i += kLanes) {
        const vf v = i + kLanes <= width ? load(x + i) : load_part(x + i, width - i);
        sums[0] = multiply_add(v, v, sums[0]);
    }
    const float sum = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

static void rms_norm(const Rows& x, const float* weight, float eps, int64_t width, const Rows& out, int64_t first, int64_t last) {
    const int64_t whole = width - width % kLanes, rest = width - whole;
    for (int64_t t = first; t < last; t++)
        for (int64_t begin = 0; begin < x.width; begin += width) {
            const float* from = x.row(t) + begin;
            float* to = out.row(t) + begin;
            const vf factor = all(inverse_rms(from, width, eps));
            if (weight == nullptr) {
                for (int64_t i = 0; i < whole; i += kLanes) store(to + i, load(from + i) * factor);
                if (rest > 0) store_part(to + whole, load_part(from + whole, rest) * factor, rest);
            } else {
                for (int64_t i = 0; i < whole; i += kLanes) store(to + i, load(from + i) * factor * load(weight + i));
                if (rest > 0) store_part(to + whole, load_part(from + whole, rest) * factor * load_part(weight + whole, rest), rest);
            }
        }
}

// Turns the pairs (low, high) by the angles whose cosines and sines are given.
static inline void turn(vf& low, vf& high, vf cosine, vf sine) {
    const vf turned_low = low * cosine - high * sine;
    high = high * cosine + low * sine;
    low = turned_low;
}

static void rotary_angles(const float* frequencies, const int32_t* positions, const Rows& out, int64_t first, int64_t last) {
    const int64_t half = out.width / 2, whole = half - half % kLanes, rest = half - whole;
    for (int64_t t = first; t < last; t++) {
        const vf position = all(static_cast<float>(positions[t]));
        float *cosine = out.row(t), *sine = cosine + half;
        vf cosines, sines;
        for (int64_t i = 0; i < whole; i += kLanes) {
            cosine_and_sine(load(frequencies + i) * position, cosines, sines);
            store(cosine + i, cosines);
            store(sine + i, sines);
        }
        if (rest > 0) {
            cosine_and_sine(load_part(frequencies + whole, rest) * position, cosines, sines);
            store_part(cosine + whole, cosines, rest);
            store_part(sine + whole, sines, rest);
        }
    }
}

static void rotary(const Rows& x, const float* cos_sin, int64_t head_dim, int64_t first, int64_t last) {
    const int64_t half = head_dim / 2, whole = half - half % kLanes, rest = half - whole;
    for (int64_t t = first; t < last; t++) {
        const float* cosine = cos_sin + t * head_dim;
        const float* sine = cosine + half;
        for (int64_t begin = 0; begin < x.width; begin += head_dim) {
            float* head = x.row(t) + begin;
            for (int64_t i = 0; i < whole; i += kLanes) {
                vf low = load(head + i), high = load(head + half + i);
                turn(low, high, load(cosine + i), load(sine + i));
                store(head + i, low);
                store(head + half + i, high);
            }
            if (rest > 0) {
                vf low = load_part(head + whole, rest), high = load_part(head + half + whole, rest);
                turn(low, high, load_part(cosine + whole, rest), load_part(sine + whole, rest));
                store_part(head + whole, low, rest);
                store_part(head + half + whole, high, rest);
            }
        }
    }
}

// gelu in its tanh form, as x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): 0 where exp would overflow.
static inline vf gelu(vf x) {
    const vf power = x * multiply_add(x * x, all(-0.0713548162726f), all(-1.59576912161f));
    const vi vanishes = power > all(87.0f);
    const vf result = x / (all(1.0f) + exponential(choose(vanishes, all(0.0f), power)));
    return choose(vanishes, all(0.0f), result);
}

// out = function(x, y) on rows first..last.
template <typename Function>
static inline void combine(const Rows& x, const Rows& y, const Rows& out, int64_t first, int64_t last, Function function) {
    const int64_t width = out.width, whole = width - width % kLanes, rest = width - whole;
    for (int64_t t = first; t < last; t++) {
        const float *a = x.row(t), *b = y.row(t);
        float* to = out.row(t);
        for (int64_t i = 0; i < whole; i += kLanes) store(to + i, function(load(a + i), load(b + i)));
        if (rest > 0) store_part(to + whole, function(load_part(a + whole, rest), load_part(b + whole, rest)), rest);
    }
}

static void gelu_gate(const Rows& gate, const Rows& up, const Rows& out, int64_t first, int64_t last) {
    combine(gate, up, out, first, last, [](vf a, vf b) { return gelu(a) * b; });
}

static void add(const Rows& x, const Rows& y, const Rows& out, int64_t first, int64_t last) {
    combine(x, y, out, first, last, [](vf a, vf b) { return a + b; });
}

static void multiply(const Rows& x, const float* factors, bool is_vector, const Rows& out, int64_t first, int64_t last) {
    if (is_vector) {
        // The same row of factors for every row of x.
        const Rows same{const_cast<float*>(factors), x.num_rows, x.width, 0};
        combine(x, same, out, first, last, [](vf a, vf b) { return a * b; });
    } else {
        const vf factor = all(factors[0]);
        combine(x, x, out, first, last, [factor](vf a, vf) { return a * factor; });
    }
}

static inline vf cap_softly(vf x, vf cap) { return hyperbolic_tangent(x / cap) * cap; }

static void softcap(const Rows& x, float cap, int64_t first, int64_t last) {
    const vf limit = all(cap);
    combine(x, x, x, first, last, [limit](vf a, vf) { return cap_softly(a, limit); });
}

static void write_cache(const Rows& x, const int32_t* slots, void* cache, bool is_bfloat16, int64_t first, int64_t last) {
    const int64_t width = x.width, whole = width - width % kLanes;
    for (int64_t t = first; t < last; t++) {
        const float* from = x.row(t);
        const int64_t offset = static_cast<int64_t>(slots[t]) * width;
        if (!is_bfloat16) {
            std::memcpy(static_cast<float*>(cache) + offset, from, static_cast<size_t>(width) * sizeof(float));
            continue;
        }
        uint16_t* to = static_cast<uint16_t*>(cache) + offset;
        for (int64_t i = 0; i < whole; i += kLanes)
            *reinterpret_cast<vus_half*>(to + i) = __builtin_convertvector(round_to_bfloat16(load(from + i)) >> 16, vus_half);
        if (whole < width) {
            uint32_t lanes[kLanes];
            store_bits(lanes, reinterpret_cast<vi>(round_to_bfloat16(load_part(from + whole, width - whole)) >> 16));
            for (int64_t i = whole; i < width; i++) to[i] = static_cast<uint16_t>(lanes[i - whole]);
        }
    }
}
