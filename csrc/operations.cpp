#include "operations.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

namespace gemwright {

namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kCacheLine = 64;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Values below which one thread does a row operation sooner than two: a few microseconds' worth.
constexpr int64_t kValuesOfATask = 16384;

// Purposes of scratch; those of a thread come last, kThreadPurposes for each.
enum Purpose { kCodes, kSums, kScales, kExpertRows, kExpertInner, kExpertGated, kExpertOut, kPartials, kShared };
enum ThreadPurpose { kMultiply, kAttend, kTilePartials, kThreadPurposes };

bool is_quantized(const Matrix& matrix) {
    return matrix.encoding != Encoding::float32 && matrix.encoding != Encoding::bfloat16;
}

Rows rows_of(float* data, int64_t num_rows, int64_t width) { return {data, num_rows, width, width}; }

}  // namespace

Pages::Pages(int64_t num_bytes) : num_bytes_(num_bytes) {
    const bool is_large = num_bytes >= kHugePage;
    mapped_bytes_ = std::max<int64_t>(round_up(num_bytes, 4096) + (is_large ? kHugePage : 0), 4096);
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(mapped_);
    if (is_large) {
        data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<int64_t>(mapped_), kHugePage));
        // Only whole huge pages, so that what is held stays what was asked for.
        const int64_t whole = num_bytes / kHugePage * kHugePage;
        madvise(data_, whole, MADV_HUGEPAGE);
    }
}

Pages::~Pages() { munmap(mapped_, mapped_bytes_); }

Operations::Operations(const Kernels& kernels, Scheme scheme, int num_threads)
    : kernels_(kernels), scheme_(scheme), pool_(num_threads) {
    scratch_.resize(kShared + kThreadPurposes * pool_.num_threads());
}

int64_t Operations::scratch_bytes() const {
    int64_t sum = 0;
    for (const auto& pages : scratch_) sum += pages ? pages->num_bytes() : 0;
    return sum;
}

void* Operations::scratch(int purpose, int64_t num_bytes) {
    std::unique_ptr<Pages>& pages = scratch_[purpose];
    if (!pages || pages->num_bytes() < num_bytes) {
        pages.reset();
        pages = std::make_unique<Pages>(num_bytes);
    }
    return pages->data();
}

void Operations::for_rows(int64_t num_rows, int64_t width, const OnRows& on_rows) {
    const int64_t rows = std::max<int64_t>(1, kValuesOfATask / std::max<int64_t>(1, width));
    if (rows >= num_rows) {
        if (num_rows > 0) on_rows(0, num_rows);
        return;
    }
    pool_.run((num_rows + rows - 1) / rows, [&](int64_t task, int) {
        on_rows(task * rows, std::min(num_rows, (task + 1) * rows));
    });
}

void Operations::pack(const Matrix& matrix, uint8_t* data, int64_t first, const uint8_t* stored, int64_t row_bytes, int64_t num_rows) {
    constexpr int64_t kPanelsOfATask = 4;
    const int64_t panels = (num_rows + kPanel - 1) / kPanel;
    pool_.run((panels + kPanelsOfATask - 1) / kPanelsOfATask, [&](int64_t task, int) {
        const int64_t last = std::min(panels, (task + 1) * kPanelsOfATask);
        for (int64_t panel = task * kPanelsOfATask; panel < last; panel++) {
            const int64_t row = panel * kPanel;
            pack_panel(matrix.encoding, matrix.width, stored + row * row_bytes, row_bytes, std::min(kPanel, num_rows - row),
                       data + (first / kPanel + panel) * matrix.panel_bytes);
        }
    });
}

void Operations::linear(const Rows& x, const Weight& weight, const Rows& out) {
    if (x.num_rows == 0) return;
    const int64_t width = weight.width();
    const bool rounds = scheme_ == Scheme::int16x && std::any_of(weight.matrices.begin(), weight.matrices.end(), is_quantized);
    QuantizedRows quantized{};
    if (rounds) {
        const int64_t padded = round_up(width, 32);
        auto* codes = static_cast<int16_t*>(scratch(kCodes, x.num_rows * padded * 2));
        auto* sums = static_cast<int32_t*>(scratch(kSums, x.num_rows * (padded / 16) * 4));
        auto* scales = static_cast<float*>(scratch(kScales, x.num_rows * 4));
        for_rows(x.num_rows, width, [&](int64_t first, int64_t last) {
            for (int64_t t = first; t < last; t++)
                kernels_.quantize_row(x.row(t), width, padded, codes + t * padded, sums + t * (padded / 16), scales + t);
        });
        quantized = {codes, sums, scales, x.num_rows, padded};
    }
    const int64_t thread_bytes = multiply_scratch_bytes(width);
    for (int thread = 0; thread < pool_.num_threads(); thread++)
        scratch(kShared + kThreadPurposes * thread + kMultiply, thread_bytes);

    int64_t num_panels = 0;
    for (const Matrix& matrix : weight.matrices) num_panels += matrix.num_panels();
    // A few tasks a thread even out what each takes; one at most 2 MiB of weights, at least one panel.
    const int64_t most = std::max<int64_t>(1, (2 << 20) / std::max<int64_t>(1, weight.matrices.front().panel_bytes));
    const int64_t share = (num_panels + 4 * pool_.num_threads() - 1) / (4 * pool_.num_threads());
    const int64_t size = std::max<int64_t>(1, std::min(most, share));
    pool_.run((num_panels + size - 1) / size, [&](int64_t task, int thread) {
        void* own = scratch_[kShared + kThreadPurposes * thread + kMultiply]->data();
        int64_t begin = task * size, end = std::min(num_panels, begin + size);
        int64_t column = 0;
        for (const Matrix& matrix : weight.matrices) {
            const int64_t panels = matrix.num_panels();
            if (begin < panels && end > 0) {
                const int64_t first = std::max<int64_t>(0, begin), last = std::min(panels, end);
                const Rows target{out.data + column, out.num_rows, matrix.num_outputs, out.stride};
                if (scheme_ == Scheme::int16x && is_quantized(matrix)) {
                    kernels_.multiply_int16(matrix, first, last, quantized, target, own);
                } else {
                    kernels_.multiply_float(matrix, first, last, x, target, own);
                }
            }
            begin -= panels;
            end -= panels;
            column += matrix.num_outputs;
        }
    });
}

void Operations::embed(const Matrix& table, const int32_t* ids, float scale, const Rows& out) {
    for_rows(out.num_rows, out.width, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; t++) kernels_.unpack_row(table, ids[t], scale, out.row(t));
    });
}

void Operations::embed_rows(Encoding encoding, const uint8_t* table, const int32_t* ids, float scale, const Rows& out) {
    const int64_t row_bytes = stored_row_bytes(encoding, out.width), bytes = panel_bytes(encoding, out.width);
    // A row is read through a panel of its own, so that there is one definition of what stored codes mean.
    auto* panels = static_cast<uint8_t*>(scratch(kExpertInner, bytes * pool_.num_threads()));
    pool_.run(out.num_rows, [&](int64_t t, int thread) {
        uint8_t* panel = panels + bytes * thread;
        pack_panel(encoding, out.width, table + ids[t] * row_bytes, row_bytes, 1, panel);
        kernels_.unpack_row(Matrix{encoding, 1, out.width, bytes, panel}, 0, scale, out.row(t));
    });
}

void Operations::gather_rows(const Rows& x, const int32_t* rows, const Rows& out) {
    for (int64_t t = 0; t < out.num_rows; t++) std::memcpy(out.row(t), x.row(rows[t]), out.width * 4);
}

void Operations::rms_norm(const Rows& x, const float* weight, float eps, int64_t width, const Rows& out) {
    for_rows(x.num_rows, x.width, [&](int64_t first, int64_t last) { kernels_.rms_norm(x, weight, eps, width, out, first, last); });
}

void Operations::rotary_angles(const float* frequencies, const int32_t* positions, const Rows& out) {
    for_rows(out.num_rows, 8 * out.width, [&](int64_t first, int64_t last) { kernels_.rotary_angles(frequencies, positions, out, first, last); });
}

void Operations::rotary(const Rows& x, const float* cos_sin, int64_t head_dim) {
    for_rows(x.num_rows, x.width, [&](int64_t first, int64_t last) { kernels_.rotary(x, cos_sin, head_dim, first, last); });
}

void Operations::gelu_gate(const Rows& gate, const Rows& up, const Rows& out) {
    for_rows(out.num_rows, 4 * out.width, [&](int64_t first, int64_t last) { kernels_.gelu_gate(gate, up, out, first, last); });
}

void Operations::add(const Rows& x, const Rows& y, const Rows& out) {
    for_rows(out.num_rows, out.width, [&](int64_t first, int64_t last) { kernels_.add(x, y, out, first, last); });
}

void Operations::multiply(const Rows& x, const float* factors, bool is_vector, const Rows& out) {
    for_rows(out.num_rows, out.width, [&](int64_t first, int64_t last) { kernels_.multiply(x, factors, is_vector, out, first, last); });
}

void Operations::softcap(const Rows& x, float cap) {
    // Rows of logits are few and wide: cut across, which changes nothing for a function of single values.
    constexpr int64_t kColumns = 8192;
    const int64_t pieces = (x.width + kColumns - 1) / kColumns;
    pool_.run(x.num_rows * pieces, [&](int64_t task, int) {
        const int64_t column = task % pieces * kColumns;
        const Rows piece{x.row(task / pieces) + column, 1, std::min(kColumns, x.width - column), x.stride};
        kernels_.softcap(piece, cap, 0, 1);
    });
}

void Operations::write_cache(const Rows& x, const int32_t* slots, void* cache, bool is_bfloat16) {
    for_rows(x.num_rows, x.width, [&](int64_t first, int64_t last) { kernels_.write_cache(x, slots, cache, is_bfloat16, first, last); });
}

void Operations::attend_tile(const AttentionCall& call, int64_t sequence, int64_t kv_head, int64_t first, int64_t last, bool in_parallel, int thread) {
    const int64_t group = call.num_heads / call.num_kv_heads, head_dim = call.head_dim;
    const int64_t num_rows = (last - first) * group;
    int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
    for (int64_t t = first; t < last; t++) {
        begin = std::min<int64_t>(begin, call.key_begin[t]);
        end = std::max<int64_t>(end, call.key_end[t]);
    }
    const int64_t first_chunk = begin / kKeyChunk, num_chunks = std::max<int64_t>(0, (end + kKeyChunk - 1) / kKeyChunk - first_chunk);
    // In parallel: a wave of chunks at once, each into its own partials, merged in rising order afterwards.
    const int64_t wave = in_parallel ? std::min<int64_t>(num_chunks, 8 * pool_.num_threads()) : 1;
    const int64_t tile_floats = num_rows * (head_dim + kCacheLine);
    const int purpose = in_parallel ? static_cast<int>(kPartials) : kShared + kThreadPurposes * thread + kTilePartials;
    const int64_t table_bytes = round_up((wave + 1) * num_rows * static_cast<int64_t>(sizeof(Partial)), kCacheLine);
    auto* memory = static_cast<uint8_t*>(scratch(purpose, table_bytes + (wave + 1) * tile_floats * 4));
    auto* partials = reinterpret_cast<Partial*>(memory);
    auto* floats = reinterpret_cast<float*>(memory + table_bytes);
    for (int64_t i = 0; i < (wave + 1) * num_rows; i++) partials[i].summed = floats + i * round_up(head_dim, 16);
    Partial* merged = partials + wave * num_rows;
    for (int64_t i = 0; i < num_rows; i++) {
        merged[i].largest = -std::numeric_limits<float>::infinity();
        merged[i].total = 0;
        std::memset(merged[i].summed, 0, head_dim * 4);
    }
    const auto attend = [&](int64_t chunk, int64_t place, int worker) {
        void* own = scratch_[kShared + kThreadPurposes * worker + kAttend]->data();
        kernels_.attend_chunk(call, sequence, kv_head, first, last, chunk, partials + place * num_rows, own);
    };
    for (int64_t from = 0; from < num_chunks; from += std::max<int64_t>(1, wave)) {
        const int64_t count = std::min(wave, num_chunks - from);
        if (in_parallel) {
            pool_.run(count, [&](int64_t task, int worker) { attend(first_chunk + from + task, task, worker); });
        } else {
            attend(first_chunk + from, 0, thread);
        }
        for (int64_t place = 0; place < count; place++)
            for (int64_t i = 0; i < num_rows; i++) kernels_.merge(merged[i], partials[place * num_rows + i], head_dim);
    }
    for (int64_t t = first; t < last; t++)
        for (int64_t head = 0; head < group; head++)
            kernels_.finish(merged[(t - first) * group + head], head_dim, call.out.row(t) + (kv_head * group + head) * head_dim);
}

void Operations::attention(const AttentionCall& call) {
    const int64_t group = call.num_heads / call.num_kv_heads;
    const int64_t rows_of_a_tile = std::max<int64_t>(1, kAttendRows / group);
    struct Tile {
        int64_t sequence, kv_head, first, last;
    };
    std::vector<Tile> tiles;
    for (int64_t sequence = 0; sequence < call.num_sequences; sequence++)
        for (int64_t first = call.query_start[sequence]; first < call.query_start[sequence + 1]; first += rows_of_a_tile)
            for (int64_t kv_head = 0; kv_head < call.num_kv_heads; kv_head++)
                tiles.push_back({sequence, kv_head, first, std::min<int64_t>(call.query_start[sequence + 1], first + rows_of_a_tile)});
    if (tiles.empty()) return;
    const int64_t thread_bytes = attend_scratch_bytes(call.head_dim, rows_of_a_tile * group);
    for (int thread = 0; thread < pool_.num_threads(); thread++) scratch(kShared + kThreadPurposes * thread + kAttend, thread_bytes);
    const auto count = static_cast<int64_t>(tiles.size());
    if (pool_.num_threads() > 1 && count < 2 * pool_.num_threads()) {
        for (const Tile& tile : tiles) attend_tile(call, tile.sequence, tile.kv_head, tile.first, tile.last, true, 0);
    } else {
        // The last rows of a prompt see the most keys: begin with them, so that no long task is left at the end.
        pool_.run(count, [&](int64_t task, int thread) {
            const Tile& tile = tiles[count - 1 - task];
            attend_tile(call, tile.sequence, tile.kv_head, tile.first, tile.last, false, thread);
        });
    }
}

void Operations::route(const Rows& scores, const float* expert_scales, int64_t num_chosen, int32_t* ids, float* weights) {
    const int64_t num_experts = scores.width;
    std::vector<float> parts(num_experts);
    for (int64_t t = 0; t < scores.num_rows; t++) {
        const float* row = scores.row(t);
        const float highest = *std::max_element(row, row + num_experts);
        float total = 0;
        for (int64_t e = 0; e < num_experts; e++) total += parts[e] = std::exp(row[e] - highest);
        for (int64_t e = 0; e < num_experts; e++) parts[e] /= total;
        float chosen_total = 0;
        for (int64_t choice = 0; choice < num_chosen; choice++) {
            const auto best = static_cast<int32_t>(std::max_element(parts.begin(), parts.end()) - parts.begin());
            ids[t * num_chosen + choice] = best;
            chosen_total += weights[t * num_chosen + choice] = parts[best];
            parts[best] = -1;
        }
        for (int64_t choice = 0; choice < num_chosen; choice++)
            weights[t * num_chosen + choice] = weights[t * num_chosen + choice] / chosen_total * expert_scales[ids[t * num_chosen + choice]];
    }
}

void Operations::experts(const Rows& x, const int32_t* ids, const float* weights, int64_t num_chosen,
                         const std::vector<Weight>& gate_up, const std::vector<Weight>& down, const Rows& out) {
    for (int64_t t = 0; t < out.num_rows; t++) std::memset(out.row(t), 0, out.width * 4);
    std::vector<int64_t> rows;
    std::vector<float> factors;
    for (size_t expert = 0; expert < gate_up.size(); expert++) {
        rows.clear();
        factors.clear();
        for (int64_t t = 0; t < x.num_rows; t++)
            for (int64_t choice = 0; choice < num_chosen; choice++)
                if (ids[t * num_chosen + choice] == static_cast<int32_t>(expert)) {
                    rows.push_back(t);
                    factors.push_back(weights[t * num_chosen + choice]);
                }
        if (rows.empty()) continue;
        const auto count = static_cast<int64_t>(rows.size());
        const int64_t inner = gate_up[expert].num_outputs() / 2;
        const Rows taken = rows_of(static_cast<float*>(scratch(kExpertRows, count * x.width * 4)), count, x.width);
        for (int64_t i = 0; i < count; i++) std::memcpy(taken.row(i), x.row(rows[i]), x.width * 4);
        const Rows both = rows_of(static_cast<float*>(scratch(kExpertInner, count * 2 * inner * 4)), count, 2 * inner);
        linear(taken, gate_up[expert], both);
        const Rows gated = rows_of(static_cast<float*>(scratch(kExpertGated, count * inner * 4)), count, inner);
        gelu_gate({both.data, count, inner, both.stride}, {both.data + inner, count, inner, both.stride}, gated);
        const Rows result = rows_of(static_cast<float*>(scratch(kExpertOut, count * out.width * 4)), count, out.width);
        linear(gated, down[expert], result);
        for (int64_t i = 0; i < count; i++) {
            float* to = out.row(rows[i]);
            const float* from = result.row(i);
            for (int64_t column = 0; column < out.width; column++) to[column] += from[column] * factors[i];
        }
    }
}

}  // namespace gemwright
