// Attention over one chunk of cached keys, and the merging of chunks. Included inside a level's namespace after rows.hpp.
//
// A row here is one query head of one token. The order of every sum is a row's own: a score is summed in lanes over the
// head's dimensions, the lanes then halves onto halves; the weights of a chunk in lanes of their place in the chunk; a
// dimension of the values over the keys that the row sees, rising. A key that a row does not see is skipped, not
// weighted by zero: what lies there cannot reach the row.
//
// Keys are worked on in tiles of up to kTileKeys, which stay in the first cache for all rows.

// Sums that registers hold at once beside what they are summed from, for 4, 2 and 1 rows: rows times keys, or rows times
// vectors of dimensions.
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
constexpr int kSumsOf4 = 16, kSumsOf2 = 8, kSumsOf1 = 4;
#elif (defined(__AVX2__) && GEMWRIGHT_LANES == 8) || defined(__aarch64__)
constexpr int kSumsOf4 = 12, kSumsOf2 = 8, kSumsOf1 = 4;
#else
constexpr int kSumsOf4 = 4, kSumsOf2 = 4, kSumsOf1 = 4;
#endif
template <int kRows>
constexpr int columns_of() { return (kRows == 4 ? kSumsOf4 : kRows == 2 ? kSumsOf2 : kSumsOf1) / kRows; }

// Above this many rows a tile is copied (and widened) once for all of them; up to it, it is read where it lies.
constexpr int64_t kDirectRows = 8;
// Rows of K or V that may be named beyond the last of a chunk: what is looked at ahead, or to fill up a pass.
constexpr int64_t kAhead = kTileKeys + 32;
// Bytes of a tile's keys that stay in the first cache beside queries and sums.
constexpr int64_t kTileBytes = 24576;
// How far the pass over keys looks ahead.
constexpr int64_t kLookAheadBytes = 16384;

// The compiler would rather read a vector from memory again for every use.
static inline void keep_in_register(vf& x) {
#if defined(__AVX512F__) && GEMWRIGHT_LANES == 16
    asm("" : "+v"(x));
#elif defined(__AVX2__) && GEMWRIGHT_LANES == 8
    asm("" : "+x"(x));
#else
    (void)x;
#endif
}

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

static inline v8 fold_to_8(vf x) {
#if GEMWRIGHT_LANES == 8
    return x;
#else
    v8 halves[2];
    std::memcpy(halves, &x, sizeof(x));
    return halves[0] + halves[1];
#endif
}

// Eight sums of lanes at once, each in the order of sum_lanes.
static inline v8 sum_lanes_of_8(const vf* sums) {
    v8 fours[4], twos[2];
    for (int i = 0; i < 4; i++) {
        const v8 a = fold_to_8(sums[i]), b = fold_to_8(sums[i + 4]);
        fours[i] = __builtin_shuffle(a, b, v8i{0, 1, 2, 3, 8, 9, 10, 11}) + __builtin_shuffle(a, b, v8i{4, 5, 6, 7, 12, 13, 14, 15});
    }
    for (int i = 0; i < 2; i++) {
        const v8 a = fours[i], b = fours[i + 2];
        twos[i] = __builtin_shuffle(a, b, v8i{0, 1, 8, 9, 4, 5, 12, 13}) + __builtin_shuffle(a, b, v8i{2, 3, 10, 11, 6, 7, 14, 15});
    }
    // Here the two lanes left of sum s stand at s / 2 * 2 in twos[s % 2].
    const v8 a = twos[0], b = twos[1];
    return __builtin_shuffle(a, b, v8i{0, 8, 2, 10, 4, 12, 6, 14}) + __builtin_shuffle(a, b, v8i{1, 9, 3, 11, 5, 13, 7, 15});
}

template <bool kBfloat16>
static inline vf read(const char* row, int64_t d) {
    if (kBfloat16) return widen_bfloat16(reinterpret_cast<const uint16_t*>(row) + d);
    return load(reinterpret_cast<const float*>(row) + d);
}

// The place in memory that a loop over rows looks at ahead of its own, a line at a time, into the second cache: the first
// has too few lines under way at once (half the rate, measured).
static inline void look_ahead(const char* row, int64_t byte) { __builtin_prefetch(row + byte, 0, 2); }

// scores[r][k] = queries[r] . keys[k] for kRows rows and as many keys as there is room for.
template <int kRows, bool kBfloat16, bool kLooksAhead>
static inline void score_block(const float* queries, int64_t padded_dim, const char* const* keys, int64_t ahead, float* scores) {
    constexpr int kKeys = columns_of<kRows>(), kNumSums = kRows * kKeys, kPadded = (kNumSums + 7) / 8 * 8;
    constexpr int64_t kBytes = kBfloat16 ? 2 : 4, kStep = 64 / kBytes > kLanes ? 64 / kBytes : kLanes;
    vf sums[kPadded];
#pragma GCC unroll 16
    for (int i = 0; i < kPadded; i++) sums[i] = vf{};
    const auto add = [&](int64_t d) __attribute__((always_inline)) {
        vf key[kKeys];
#pragma GCC unroll 8
        for (int k = 0; k < kKeys; k++) key[k] = read<kBfloat16>(keys[k], d);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
            vf query = load(queries + r * padded_dim + d);
            if (kKeys > 1) keep_in_register(query);
#pragma GCC unroll 8
            for (int k = 0; k < kKeys; k++) sums[r * kKeys + k] = multiply_add(query, key[k], sums[r * kKeys + k]);
        }
    };
    int64_t d = 0;
    if (kLooksAhead)
        for (; d + kStep <= padded_dim; d += kStep) {
#pragma GCC unroll 8
            for (int k = 0; k < kKeys; k++) look_ahead(keys[ahead + k], d * kBytes);
#pragma GCC unroll 4
            for (int64_t i = 0; i < kStep; i += kLanes) add(d + i);
        }
    for (; d < padded_dim; d += kLanes) add(d);
    float lanes[kPadded];
#pragma GCC unroll 2
    for (int i = 0; i < kPadded; i += 8) {
        const v8 sum = sum_lanes_of_8(sums + i);
        std::memcpy(lanes + i, &sum, sizeof(sum));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) std::memcpy(scores + r * kScoreStride, lanes + r * kKeys, kKeys * sizeof(float));
}

// sums[r][d ...] += weights[r][k] * values[k][d ...] over rising keys, for kRows rows and kVectors vectors.
template <int kRows, int kVectors, bool kBfloat16, bool kLooksAhead>
static inline void weigh_block(const float* weights, const char* const* values, int64_t num_keys, int64_t d, int64_t padded_dim, float* summed) {
    constexpr int64_t kBytes = kBfloat16 ? 2 : 4;
    vf sums[kRows * kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; v++) sums[r * kVectors + v] = load(summed + r * padded_dim + d + v * kLanes);
    for (int64_t k = 0; k < num_keys; k++) {
        if (kLooksAhead)
#pragma GCC unroll 8
            for (int64_t i = 0; i < kVectors * kLanes * kBytes; i += 64) look_ahead(values[kTileKeys + k], d * kBytes + i);
        vf value[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; v++) value[v] = read<kBfloat16>(values[k], d + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
            vf weight = all(weights[r * kScoreStride + k]);
            if (kVectors > 1) keep_in_register(weight);
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; v++) sums[r * kVectors + v] = multiply_add(weight, value[v], sums[r * kVectors + v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; v++) store(summed + r * padded_dim + d + v * kLanes, sums[r * kVectors + v]);
}

template <int kRows, bool kBfloat16, bool kLooksAhead>
static inline void weigh_rows(const float* weights, const char* const* values, int64_t num_keys, int64_t padded_dim, float* summed) {
    constexpr int kVectors = columns_of<kRows>();
    int64_t d = 0;
    for (; d + kVectors * kLanes <= padded_dim; d += kVectors * kLanes)
        weigh_block<kRows, kVectors, kBfloat16, kLooksAhead>(weights, values, num_keys, d, padded_dim, summed);
    if (kVectors > 2)
        for (; d + 2 * kLanes <= padded_dim; d += 2 * kLanes)
            weigh_block<kRows, 2, kBfloat16, kLooksAhead>(weights, values, num_keys, d, padded_dim, summed);
    for (; d < padded_dim; d += kLanes) weigh_block<kRows, 1, kBfloat16, kLooksAhead>(weights, values, num_keys, d, padded_dim, summed);
}

// The `count` values from a cached row's element d on (fewer than a vector at a head's end), zeros after them.
static inline vf read_part(const char* row, bool is_bfloat16, int64_t d, int64_t count) {
    if (!is_bfloat16) return load_part(reinterpret_cast<const float*>(row) + d, count);
    uint16_t lanes[kLanes] = {};
    std::memcpy(lanes, row + d * 2, static_cast<size_t>(count) * 2);
    return widen_bfloat16(lanes);
}

// out[padded_dim] = a cached row as float32, padded with zeros. Looks ahead to another row.
template <bool kBfloat16>
static inline void widen_row(const char* row, const char* ahead, int64_t head_dim, float* out) {
    constexpr int64_t kBytes = kBfloat16 ? 2 : 4;
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) {
        if (d * kBytes % 64 == 0) look_ahead(ahead, d * kBytes);
        store(out + d, read<kBfloat16>(row, d));
    }
    if (d < head_dim) store(out + d, read_part(row, kBfloat16, d, head_dim - d));
}

// How the keys of a layer come from its values.
struct Rebuild {
    const float *norm, *frequencies;
    int64_t num_turning;  // pairs from here on stand still
};

// As round_to_bfloat16, of products of cached values, whose NaN stay NaN without a look at them.
static inline vf nearest_bfloat16(vf x) {
    const vu bits = reinterpret_cast<vu>(x);
    return reinterpret_cast<vf>((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
}

// out[padded_dim] = the key of a cached value: RoPE(value * norm) at `position`, rounded as the cache rounds.
template <bool kBfloat16>
static inline void rebuild_key(const char* value, const char* ahead, const Rebuild& rebuild, int64_t position, int64_t head_dim, float* out) {
    constexpr int64_t kBytes = kBfloat16 ? 2 : 4;
    const int64_t half = head_dim / 2;
    const float* norm = rebuild.norm;
    for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, half - i);
        const bool is_whole = count == kLanes;
        if (i * kBytes % 64 == 0) {
            look_ahead(ahead, i * kBytes);
            look_ahead(ahead, (half + i) * kBytes);
        }
        vf low = is_whole ? read<kBfloat16>(value, i) * load(norm + i) : read_part(value, kBfloat16, i, count) * load_part(norm + i, count);
        vf high = is_whole ? read<kBfloat16>(value, half + i) * load(norm + half + i)
                           : read_part(value, kBfloat16, half + i, count) * load_part(norm + half + i, count);
        if (i < rebuild.num_turning) {
            const vf frequency = is_whole ? load(rebuild.frequencies + i) : load_part(rebuild.frequencies + i, count);
            vf cosines, sines;
            cosine_and_sine(frequency * all(static_cast<float>(position)), cosines, sines);
            turn(low, high, cosines, sines);
        }
        if (kBfloat16) {
            low = nearest_bfloat16(low);
            high = nearest_bfloat16(high);
        }
        if (is_whole) {
            store(out + i, low);
            store(out + half + i, high);
        } else {
            store_part(out + i, low, count);
            store_part(out + half + i, high, count);
        }
    }
    for (int64_t d = head_dim; d % kLanes != 0; d++) out[d] = 0;
}

// Scores of the places begin..end of a chunk to weights, in place; their sum, and the largest score.
static inline void weights_of_scores(float* scores, int64_t begin, int64_t end, float scale, float cap, Partial& partial) {
    const float infinity = std::numeric_limits<float>::infinity();
    vi places;
    for (int i = 0; i < kLanes; i++) places[i] = i;
    const int64_t from = begin - begin % kLanes;
    vf best = all(-infinity);
    for (int64_t c = from; c < end; c += kLanes) {
        vf score = load(scores + c) * all(scale);
        if (cap != 0) score = cap_softly(score, all(cap));
        const vi place = places + static_cast<int32_t>(c);
        const vi seen = (place >= static_cast<int32_t>(begin)) & (place < static_cast<int32_t>(end));
        score = choose(seen, score, all(-infinity));
        store(scores + c, score);
        best = largest(best, score);
    }
    float lanes[kLanes];
    store(lanes, best);
    partial.largest = lanes[0];
    for (int i = 1; i < kLanes; i++) partial.largest = partial.largest > lanes[i] ? partial.largest : lanes[i];
    vf total = {};
    for (int64_t c = from; c < end; c += kLanes) {
        const vf weight = exponential(load(scores + c) - all(partial.largest));
        store(scores + c, weight);
        total += weight;
    }
    partial.total = sum_lanes(total);
}

// What the steps of one attend_chunk share. Rows of K and V are named by their place from `begin` of the chunk on.
struct ChunkWork {
    int64_t num_rows, padded_dim;
    int64_t begin, end;           // places of the chunk that some row sees
    int64_t tile_keys;            // keys of a tile
    int64_t ahead;                // rows of K and V between the one read and the one looked at
    float *queries, *summed;      // [num_rows, padded_dim]
    float* scores;                // [num_rows, kScoreStride], by place in the chunk
    float* tile;                  // [kTileKeys, padded_dim]
    int64_t row_begin[kAttendRows], row_end[kAttendRows];  // places that a row sees
};

// Scores of the tile at `low` for kRows rows from `row` on.
template <int kRows, bool kBfloat16, bool kLooksAhead>
static inline void score_rows(const ChunkWork& work, int64_t row, int64_t low, int64_t high, const char* const* keys) {
    int64_t from = work.row_begin[row], to = work.row_end[row];
    for (int r = 1; r < kRows; r++) {
        from = std::min(from, work.row_begin[row + r]);
        to = std::max(to, work.row_end[row + r]);
    }
    from = std::max(from, low);
    to = std::min(to, high);
    for (int64_t k = from; k < to; k += columns_of<kRows>())
        score_block<kRows, kBfloat16, kLooksAhead>(work.queries + row * work.padded_dim, work.padded_dim, keys + (k - low), work.ahead, work.scores + row * kScoreStride + k);
}

// Adds the weighted values of the tile at `low`: the places that all kRows rows see together, those before and after
// them row by row.
template <int kRows, bool kBfloat16, bool kLooksAhead>
static inline void weigh_tile_rows(const ChunkWork& work, int64_t row, int64_t low, int64_t high, const char* const* values) {
    int64_t from = low, to = high;
    for (int r = 0; r < kRows; r++) {
        from = std::max(from, work.row_begin[row + r]);
        to = std::min(to, work.row_end[row + r]);
    }
    const auto weigh_one = [&](int64_t r, int64_t begin, int64_t end) {
        begin = std::max(begin, std::max(low, work.row_begin[r]));
        end = std::min(end, std::min(high, work.row_end[r]));
        if (begin < end)
            weigh_rows<1, kBfloat16, false>(work.scores + r * kScoreStride + begin, values + (begin - low), end - begin, work.padded_dim, work.summed + r * work.padded_dim);
    };
    if (from >= to) from = to = high;
    if (kRows > 1)
        for (int r = 0; r < kRows; r++) weigh_one(row + r, low, from);
    if (from < to)
        weigh_rows<kRows, kBfloat16, kLooksAhead>(work.scores + row * kScoreStride + from, values + (from - low), to - from, work.padded_dim, work.summed + row * work.padded_dim);
    if (kRows > 1)
        for (int r = 0; r < kRows; r++) weigh_one(row + r, to, high);
}

// Both passes over a tile for all rows, four, two and one at a time. Rows read where they lie are looked at ahead by the
// first four. Written out twice: through one function that takes the pass, a row alone takes 3 to 8 % longer (gcc 12).
template <bool kBfloat16, bool kLooksAhead>
static void score_tile(const ChunkWork& work, int64_t low, int64_t high, const char* const* keys) {
    int64_t row = 0;
    if (kLooksAhead && work.num_rows >= 4) {
        score_rows<4, kBfloat16, kLooksAhead>(work, row, low, high, keys);
        row = 4;
    }
    for (; row + 4 <= work.num_rows; row += 4) score_rows<4, kBfloat16, false>(work, row, low, high, keys);
    if (row + 2 <= work.num_rows) {
        score_rows<2, kBfloat16, kLooksAhead>(work, row, low, high, keys);
        row += 2;
    }
    if (row < work.num_rows) score_rows<1, kBfloat16, kLooksAhead>(work, row, low, high, keys);
}

template <bool kBfloat16, bool kLooksAhead>
static void weigh_tile(const ChunkWork& work, int64_t low, int64_t high, const char* const* values) {
    int64_t row = 0;
    if (kLooksAhead && work.num_rows >= 4) {
        weigh_tile_rows<4, kBfloat16, kLooksAhead>(work, row, low, high, values);
        row = 4;
    }
    for (; row + 4 <= work.num_rows; row += 4) weigh_tile_rows<4, kBfloat16, false>(work, row, low, high, values);
    if (row + 2 <= work.num_rows) {
        weigh_tile_rows<2, kBfloat16, kLooksAhead>(work, row, low, high, values);
        row += 2;
    }
    if (row < work.num_rows) weigh_tile_rows<1, kBfloat16, kLooksAhead>(work, row, low, high, values);
}

static void attend_chunk(const AttentionCall& call, int64_t sequence, int64_t kv_head, int64_t first, int64_t last, int64_t chunk, Partial* partials, void* scratch) {
    const int64_t group = call.num_heads / call.num_kv_heads, head_dim = call.head_dim;
    const int64_t start = chunk * kKeyChunk;
    ChunkWork work;
    work.num_rows = (last - first) * group;
    work.padded_dim = (head_dim + kLanes - 1) / kLanes * kLanes;
    work.begin = kKeyChunk;
    work.end = 0;
    for (int64_t t = first; t < last; t++) {
        int64_t begin = std::max<int64_t>(call.key_begin[t] - start, 0);
        int64_t end = std::min<int64_t>(call.key_end[t] - start, kKeyChunk);
        if (begin >= end) {
            begin = end = 0;
        } else {
            work.begin = std::min(work.begin, begin);
            work.end = std::max(work.end, end);
        }
        for (int64_t r = (t - first) * group; r < (t - first + 1) * group; r++) {
            work.row_begin[r] = begin;
            work.row_end[r] = end;
        }
    }
    work.queries = static_cast<float*>(scratch);
    work.summed = work.queries + work.num_rows * work.padded_dim;
    work.scores = work.summed + work.num_rows * work.padded_dim;
    work.tile = work.scores + work.num_rows * kScoreStride;
    std::memset(work.summed, 0, static_cast<size_t>(work.num_rows * work.padded_dim) * sizeof(float));

    const bool rebuilds = call.rebuild_norm != nullptr, is_bfloat16 = call.values.is_bfloat16;
    const bool widens = head_dim % kLanes != 0 || work.num_rows > kDirectRows;
    // Half a tile where a whole one would be too much for the first cache.
    const int64_t bytes_as_read = work.padded_dim * (widens || rebuilds || !is_bfloat16 ? 4 : 2);
    work.tile_keys = kTileKeys * bytes_as_read > kTileBytes ? kTileKeys / 2 : kTileKeys;
    if (work.begin < work.end) {
        for (int64_t t = first; t < last; t++)
            for (int64_t g = 0; g < group; g++) {
                const char* row = reinterpret_cast<const char*>(call.query.row(t) + (kv_head * group + g) * head_dim);
                widen_row<false>(row, row, head_dim, work.queries + ((t - first) * group + g) * work.padded_dim);
            }

        // Where the rows of K lie, then those of V, then the last again for whoever looks ahead.
        const int64_t num_keys = work.end - work.begin;
        const char* rows[2 * kKeyChunk + kAhead];
        work.ahead = std::min<int64_t>(24, std::max<int64_t>(4, kLookAheadBytes / (head_dim * (is_bfloat16 ? 2 : 4))));
        const char** values = rows + (rebuilds ? 0 : num_keys);
        const int64_t element = is_bfloat16 ? 2 : 4;
        const int64_t slot_bytes = call.num_kv_heads * head_dim * element, offset = kv_head * head_dim * element;
        const int32_t* table = call.block_table + sequence * call.table_width;
        for (int64_t i = 0; i < num_keys;) {
            const int64_t position = start + work.begin + i, in_block = position % call.block_size;
            const int64_t slot = table[position / call.block_size] * call.block_size + in_block;
            const int64_t run = std::min(call.block_size - in_block, num_keys - i);
            for (int64_t j = 0; j < run; j++, i++) {
                const int64_t at = (slot + j) * slot_bytes + offset;
                if (!rebuilds) rows[i] = static_cast<const char*>(call.keys.data) + at;
                values[i] = static_cast<const char*>(call.values.data) + at;
            }
        }
        for (int64_t i = 0; i < kAhead; i++) values[num_keys + i] = values[num_keys - 1];

        const char* tile_rows[kTileKeys + 8];
        for (int64_t i = 0; i < kTileKeys + 8; i++) tile_rows[i] = reinterpret_cast<const char*>(work.tile + std::min<int64_t>(i, kTileKeys - 1) * work.padded_dim);

        Rebuild rebuild{call.rebuild_norm, call.rebuild_frequencies, 0};
        if (rebuilds)
            for (int64_t i = 0; i < head_dim / 2; i++)
                if (rebuild.frequencies[i] != 0) rebuild.num_turning = i + 1;
        const auto widen_tile = [&](const char* const* from, int64_t count) {
            for (int64_t k = 0; k < count; k++)
                is_bfloat16 ? widen_row<true>(from[k], from[k + work.ahead], head_dim, work.tile + k * work.padded_dim)
                            : widen_row<false>(from[k], from[k + work.ahead], head_dim, work.tile + k * work.padded_dim);
        };

        for (int64_t low = work.begin; low < work.end; low += work.tile_keys) {
            const int64_t high = std::min(low + work.tile_keys, work.end), at = low - work.begin;
            if (rebuilds) {
                for (int64_t k = 0; k < high - low; k++) {
                    const char *value = values[at + k], *ahead = values[at + k + work.ahead];
                    float* key = work.tile + k * work.padded_dim;
                    is_bfloat16 ? rebuild_key<true>(value, ahead, rebuild, start + low + k, head_dim, key)
                                : rebuild_key<false>(value, ahead, rebuild, start + low + k, head_dim, key);
                }
                score_tile<false, false>(work, low, high, tile_rows);
            } else if (widens) {
                widen_tile(rows + at, high - low);
                score_tile<false, false>(work, low, high, tile_rows);
            } else if (is_bfloat16) {
                score_tile<true, true>(work, low, high, rows + at);
            } else {
                score_tile<false, true>(work, low, high, rows + at);
            }
        }
        for (int64_t r = 0; r < work.num_rows; r++)
            if (work.row_begin[r] < work.row_end[r])
                weights_of_scores(work.scores + r * kScoreStride, work.row_begin[r], work.row_end[r], call.scale, call.softcap, partials[r]);
        for (int64_t low = work.begin; low < work.end; low += work.tile_keys) {
            const int64_t high = std::min(low + work.tile_keys, work.end), at = low - work.begin;
            if (widens) {
                widen_tile(values + at, high - low);
                weigh_tile<false, false>(work, low, high, tile_rows);
            } else if (is_bfloat16) {
                weigh_tile<true, true>(work, low, high, values + at);
            } else {
                weigh_tile<false, true>(work, low, high, values + at);
            }
        }
    }
    for (int64_t r = 0; r < work.num_rows; r++) {
        if (work.row_begin[r] == work.row_end[r]) {
            partials[r].largest = -std::numeric_limits<float>::infinity();
            partials[r].total = 0;
        }
        std::memcpy(partials[r].summed, work.summed + r * work.padded_dim, static_cast<size_t>(head_dim) * sizeof(float));
    }
}

static void merge(Partial& into, const Partial& next, int64_t head_dim) {
    if (next.total == 0) return;
    if (into.total == 0) {
        into.largest = next.largest;
        into.total = next.total;
        std::memcpy(into.summed, next.summed, static_cast<size_t>(head_dim) * sizeof(float));
        return;
    }
    const float best = into.largest > next.largest ? into.largest : next.largest;
    const vf keeps = all(exponential(all(into.largest - best))[0]), adds = all(exponential(all(next.largest - best))[0]);
    into.largest = best;
    into.total = into.total * keeps[0] + next.total * adds[0];
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(into.summed + d, load(into.summed + d) * keeps + load(next.summed + d) * adds);
    if (d < head_dim) {
        const int64_t rest = head_dim - d;
        store_part(into.summed + d, load_part(into.summed + d, rest) * keeps + load_part(next.summed + d, rest) * adds, rest);
    }
}

static void finish(const Partial& partial, int64_t head_dim, float* out) {
    if (partial.total == 0) {
        std::memset(out, 0, static_cast<size_t>(head_dim) * sizeof(float));
        return;
    }
    const vf total = all(partial.total);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(out + d, load(partial.summed + d) / total);
    if (d < head_dim) store_part(out + d, load_part(partial.summed + d, head_dim - d) / total, head_dim - d);
}
