// Attention of every level that runs here against sums in double; a row's bits in any company, block size and place.
#include <algorithm>
#include <numeric>

#include "half.hpp"
#include "check.hpp"

using namespace gemwright;

namespace {

std::mt19937_64 generator;

float normal(float size = 1) { return std::normal_distribution<float>(0, size)(generator); }
int64_t number(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator); }

// One sequence's keys and values by position, and queries that see ranges of them.
struct Case {
    int64_t head_dim, num_kv_heads, group, num_positions, num_rows;
    bool is_bfloat16, rebuilds;
    float scale, softcap;
    std::vector<float> keys, values, queries, norm, frequencies;  // [position, kv_head, d], [row, head, d]
    std::vector<int32_t> key_begin, key_end;
};

float rounded(const Case& c, float x) { return c.is_bfloat16 ? bfloat16_to_float(float_to_bfloat16(x)) : x; }

Case make_case(int64_t head_dim, int64_t num_kv_heads, int64_t group, int64_t num_positions, int64_t num_rows, bool is_bfloat16, bool rebuilds, float softcap, int64_t window) {
    Case c{head_dim, num_kv_heads, group, num_positions, num_rows, is_bfloat16, rebuilds, 0.3f + 0.1f * normal(), softcap, {}, {}, {}, {}, {}, {}, {}};
    for (int64_t i = 0; i < num_positions * num_kv_heads * head_dim; i++) {
        c.keys.push_back(rounded(c, normal()));
        c.values.push_back(rounded(c, normal()));
    }
    for (int64_t i = 0; i < num_rows * num_kv_heads * group * head_dim; i++) c.queries.push_back(normal());
    for (int64_t i = 0; i < head_dim; i++) c.norm.push_back(1 + 0.3f * normal());
    const int64_t num_turning = number(0, 2) == 0 ? head_dim / 2 : number(1, head_dim / 2);
    for (int64_t i = 0; i < head_dim / 2; i++) c.frequencies.push_back(i < num_turning ? std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(head_dim)) : 0.0f);
    for (int64_t t = 0; t < num_rows; t++) {
        const int64_t end = num_positions - num_rows + t + 1;
        c.key_end.push_back(static_cast<int32_t>(end));
        c.key_begin.push_back(static_cast<int32_t>(std::max<int64_t>(0, end - window)));
    }
    return c;
}

// The cache of a case, in blocks strewn over it; what no row sees is NaN.
struct Cache {
    int64_t block_size, num_blocks, width, first_position;
    std::vector<int32_t> table;  // two sequences; the case's is the second
    Exact<uint16_t> small_keys, small_values;
    Exact<float> wide_keys, wide_values;

    Cache(const Case& c, int64_t size)
        : block_size(size), num_blocks((c.num_positions + size - 1) / size + 2), width(c.num_kv_heads * c.head_dim),
          first_position(*std::min_element(c.key_begin.begin(), c.key_begin.end())),
          small_keys(c.is_bfloat16 && !c.rebuilds ? num_blocks * size * width : 0), small_values(c.is_bfloat16 ? num_blocks * size * width : 0),
          wide_keys(!c.is_bfloat16 && !c.rebuilds ? num_blocks * size * width : 0), wide_values(!c.is_bfloat16 ? num_blocks * size * width : 0) {
        std::vector<int32_t> order(static_cast<size_t>(num_blocks));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), generator);
        table.assign(static_cast<size_t>(2 * num_blocks), 1 << 30);
        // Blocks before the window are gone: their places in the table are no numbers of blocks.
        for (int64_t block = first_position / size; block * size < c.num_positions; block++) table[static_cast<size_t>(num_blocks + block)] = order[static_cast<size_t>(block)];
        for (int64_t p = first_position; p < c.num_positions; p++) {
            const int64_t slot = table[static_cast<size_t>(num_blocks + p / size)] * size + p % size;
            for (int64_t i = 0; i < width; i++) {
                const size_t from = static_cast<size_t>(p * width + i);
                if (c.is_bfloat16) {
                    if (!c.rebuilds) small_keys[slot * width + i] = float_to_bfloat16(c.keys[from]);
                    small_values[slot * width + i] = float_to_bfloat16(c.values[from]);
                } else {
                    if (!c.rebuilds) wide_keys[slot * width + i] = c.keys[from];
                    wide_values[slot * width + i] = c.values[from];
                }
            }
        }
    }
};

// The result of all rows, given to the kernel `at_once` rows at a time.
std::vector<float> attend(const Kernels& level, const Case& c, const Cache& cache, int64_t at_once, int64_t gap) {
    const int64_t num_heads = c.num_kv_heads * c.group, width = num_heads * c.head_dim, stride = width + gap;
    Exact<float> query((c.num_rows - 1) * stride + width), out((c.num_rows - 1) * stride + width);
    for (int64_t t = 0; t < c.num_rows; t++) std::memcpy(query.get() + t * stride, c.queries.data() + t * width, static_cast<size_t>(width) * 4);
    const int32_t query_start[] = {0, 0, static_cast<int32_t>(c.num_rows)};
    const void* keys = c.rebuilds ? nullptr : c.is_bfloat16 ? static_cast<const void*>(cache.small_keys.get()) : cache.wide_keys.get();
    const void* values = c.is_bfloat16 ? static_cast<const void*>(cache.small_values.get()) : cache.wide_values.get();
    AttentionCall call{};
    call.query = Rows{query.get(), c.num_rows, width, stride};
    call.out = Rows{out.get(), c.num_rows, width, stride};
    call.keys = CacheRows{keys, c.is_bfloat16};
    call.values = CacheRows{values, c.is_bfloat16};
    call.num_heads = num_heads;
    call.num_kv_heads = c.num_kv_heads;
    call.head_dim = c.head_dim;
    call.query_start = query_start;
    call.key_begin = c.key_begin.data();
    call.key_end = c.key_end.data();
    call.block_table = cache.table.data();
    call.num_sequences = 2;
    call.table_width = cache.num_blocks;
    call.block_size = cache.block_size;
    call.scale = c.scale;
    call.softcap = c.softcap;
    call.rebuild_norm = c.rebuilds ? c.norm.data() : nullptr;
    call.rebuild_frequencies = c.rebuilds ? c.frequencies.data() : nullptr;
    for (int64_t head = 0; head < c.num_kv_heads; head++)
        for (int64_t first = 0; first < c.num_rows; first += at_once) {
            const int64_t last = std::min(first + at_once, c.num_rows), count = (last - first) * c.group;
            const int64_t bytes = attend_scratch_bytes(c.head_dim, count);
            void* scratch = std::aligned_alloc(64, static_cast<size_t>(bytes));
            Exact<float> sums(2 * count * c.head_dim);
            std::vector<Partial> merged, partials;
            for (int64_t i = 0; i < count; i++) {
                merged.push_back(Partial{-std::numeric_limits<float>::infinity(), 0, sums.get() + i * c.head_dim});
                partials.push_back(Partial{0, 1, sums.get() + (count + i) * c.head_dim});
            }
            const int64_t low = c.key_begin[static_cast<size_t>(first)], high = c.key_end[static_cast<size_t>(last - 1)];
            for (int64_t chunk = low / kKeyChunk; chunk * kKeyChunk < high; chunk++) {
                std::memset(scratch, 0xFF, static_cast<size_t>(bytes));
                for (Partial& partial : partials) std::memset(partial.summed, 0xFF, static_cast<size_t>(c.head_dim) * 4);
                level.attend_chunk(call, 1, head, first, last, chunk, partials.data(), scratch);
                for (int64_t i = 0; i < count; i++) level.merge(merged[static_cast<size_t>(i)], partials[static_cast<size_t>(i)], c.head_dim);
            }
            for (int64_t i = 0; i < count; i++)
                level.finish(merged[static_cast<size_t>(i)], c.head_dim, call.out.row(first + i / c.group) + (head * c.group + i % c.group) * c.head_dim);
            std::free(scratch);
        }
    std::vector<float> result;
    for (int64_t t = 0; t < c.num_rows; t++) result.insert(result.end(), call.out.row(t), call.out.row(t) + width);
    return result;
}

// Key of position p and K/V head h, as the model means it.
std::vector<double> key_of(const Case& c, int64_t p, int64_t h) {
    const size_t from = static_cast<size_t>((p * c.num_kv_heads + h) * c.head_dim);
    std::vector<double> key(static_cast<size_t>(c.head_dim));
    if (!c.rebuilds) {
        for (size_t d = 0; d < key.size(); d++) key[d] = c.keys[from + d];
        return key;
    }
    const size_t half = key.size() / 2;
    for (size_t d = 0; d < half; d++) {
        const double angle = static_cast<float>(p) * c.frequencies[d];
        const double low = static_cast<double>(c.values[from + d]) * c.norm[d], high = static_cast<double>(c.values[from + half + d]) * c.norm[half + d];
        key[d] = rounded(c, static_cast<float>(low * std::cos(angle) - high * std::sin(angle)));
        key[half + d] = rounded(c, static_cast<float>(high * std::cos(angle) + low * std::sin(angle)));
    }
    return key;
}

void check_values(const Kernels& level, const Case& c, const std::vector<float>& result) {
    const int64_t num_heads = c.num_kv_heads * c.group;
    double worst = 0;
    for (int64_t h = 0; h < c.num_kv_heads; h++) {
        std::vector<std::vector<double>> keys;
        for (int64_t p = 0; p < c.num_positions; p++) keys.push_back(key_of(c, p, h));
        for (int64_t t = 0; t < c.num_rows; t++)
            for (int64_t g = 0; g < c.group; g++) {
                const size_t at = static_cast<size_t>((t * num_heads + h * c.group + g) * c.head_dim);
                std::vector<double> scores, sum(static_cast<size_t>(c.head_dim));
                double best = -1e300, total = 0;
                const int64_t begin = c.key_begin[static_cast<size_t>(t)], end = c.key_end[static_cast<size_t>(t)];
                for (int64_t p = begin; p < end; p++) {
                    double score = 0;
                    for (size_t d = 0; d < sum.size(); d++) score += c.queries[at + d] * keys[static_cast<size_t>(p)][d];
                    score *= c.scale;
                    if (c.softcap != 0) score = std::tanh(score / c.softcap) * c.softcap;
                    scores.push_back(score);
                    best = std::max(best, score);
                }
                for (int64_t p = begin; p < end; p++) {
                    const double weight = std::exp(scores[static_cast<size_t>(p - begin)] - best);
                    total += weight;
                    for (size_t d = 0; d < sum.size(); d++) sum[d] += weight * c.values[static_cast<size_t>((p * c.num_kv_heads + h) * c.head_dim) + d];
                }
                for (size_t d = 0; d < sum.size(); d++) {
                    const double error = std::fabs(result[at + d] - (total == 0 ? 0 : sum[d] / total));
                    worst = std::isnan(error) || error > worst ? error : worst;
                }
            }
    }
    // A rebuilt key that lies between two bfloat16 may fall to either side.
    const double tolerance = c.rebuilds && c.is_bfloat16 ? 2e-3 : 2e-5;
    CHECK(worst < tolerance, "%s D=%lld kv=%lld group=%lld positions=%lld rows=%lld bf16=%d rebuild=%d cap=%g: error %.3g", level.name, (long long)c.head_dim, (long long)c.num_kv_heads,
          (long long)c.group, (long long)c.num_positions, (long long)c.num_rows, c.is_bfloat16, c.rebuilds, c.softcap, worst);
}

void test_case(const Case& c) {
    for (const Kernels* level : levels()) {
        const int64_t most = std::max<int64_t>(1, kAttendRows / c.group);
        const std::vector<float> whole = attend(*level, c, Cache(c, 16), most, 0);
        check_values(*level, c, whole);
        const auto same = [&](const std::vector<float>& other) { return same_bits(whole.data(), other.data(), static_cast<int64_t>(whole.size())); };
        CHECK(same(attend(*level, c, Cache(c, 16), 1, 3)), "%s: rows alone differ (D=%lld group=%lld)", level->name, (long long)c.head_dim, (long long)c.group);
        CHECK(same(attend(*level, c, Cache(c, number(1, 300)), number(1, most), 0)), "%s: another block size differs", level->name);
    }
}

// A row whose own key is not finite does not reach the rows that do not see it.
void test_strangers() {
    Case c = make_case(32, 1, 2, 40, 9, true, false, 0, 1000);
    for (int64_t d = 0; d < 32; d++) c.keys[static_cast<size_t>(39 * 32 + d)] = c.values[static_cast<size_t>(39 * 32 + d)] = std::numeric_limits<float>::infinity();
    for (const Kernels* level : levels()) {
        const std::vector<float> result = attend(*level, c, Cache(c, 16), 9, 0);
        for (size_t i = 0; i < 8 * 64; i++) CHECK(std::isfinite(result[i]), "%s: a later row reached an earlier one", level->name);
        // Infinity minus infinity is no number, and is shown.
        CHECK(!std::isfinite(result[8 * 64]), "%s: a row lost what is not finite", level->name);
    }
}

// A row that sees nothing gets zeros.
void test_blind() {
    Case c = make_case(24, 1, 2, 40, 3, false, false, 0, 1000);
    c.key_begin[1] = c.key_end[1] = 5;
    for (const Kernels* level : levels()) {
        const std::vector<float> result = attend(*level, c, Cache(c, 16), 3, 0);
        check_values(*level, c, result);
        for (size_t i = 48; i < 96; i++) CHECK(result[i] == 0, "%s: a row that sees nothing", level->name);
    }
}

}  // namespace

int main(int argc, char** argv) {
    generator.seed(seed_of(argc, argv));
    for (int64_t head_dim : {8, 12, 16, 24, 40, 128, 256, 512})
        for (int i = 0; i < 12; i++) {
            const int64_t groups[] = {1, 2, 3, 4, 5, 8, 16};
            const int64_t group = groups[number(0, 6)], num_rows = i % 3 == 0 ? 1 : number(1, 64 / group + 5);
            const int64_t num_positions = num_rows + (i % 2 == 0 ? number(0, 40) : number(0, 700));
            const int64_t window = i % 4 < 2 ? 1 << 20 : number(1, 600);
            test_case(make_case(head_dim, number(1, 2), group, num_positions, num_rows, i % 2 == 0, i % 5 == 4, i % 3 == 1 ? 5.0f : 0.0f, window));
        }
    // Far positions turn far.
    test_case(make_case(16, 1, 2, 5000, 1, false, true, 0, 5000));
    test_strangers();
    test_blind();
    return report("test_attention");
}
