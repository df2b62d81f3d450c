// The operations of the native backend: cut into tasks for the pool, each task a kernel of the chosen level.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "pool.hpp"

namespace gemwright {

// Memory of whole pages, huge ones where the system gives them; zeros at first.
class Pages {
   public:
    explicit Pages(int64_t num_bytes);
    ~Pages();
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    uint8_t* data() const { return data_; }
    int64_t num_bytes() const { return num_bytes_; }

   private:
    void* mapped_;
    int64_t mapped_bytes_;
    uint8_t* data_;
    int64_t num_bytes_;
};

// A weight: matrices whose outputs lie side by side in the result.
struct Weight {
    std::vector<Matrix> matrices;

    int64_t width() const { return matrices.front().width; }
    int64_t num_outputs() const {
        int64_t sum = 0;
        for (const Matrix& matrix : matrices) sum += matrix.num_outputs;
        return sum;
    }
};

// How weights and activations meet.
enum class Scheme : int32_t {
    // Stored codes of quantized weights with activations rounded to 16 bits; float weights as in `exact`.
    int16x,
    // The float32 value of every weight with float32 activations.
    exact,
};

// One engine's operations. Calls may come from any thread, one at a time.
class Operations {
   public:
    Operations(const Kernels& kernels, Scheme scheme, int num_threads);

    const Kernels& kernels() const { return kernels_; }
    int num_threads() const { return pool_.num_threads(); }
    // Bytes of scratch held at present.
    int64_t scratch_bytes() const;

    // Packs stored rows, `row_bytes` apart, into the panels of a matrix from output `first` on (a multiple of kPanel).
    void pack(const Matrix& matrix, uint8_t* data, int64_t first, const uint8_t* stored, int64_t row_bytes, int64_t num_rows);

    void linear(const Rows& x, const Weight& weight, const Rows& out);
    void embed(const Matrix& table, const int32_t* ids, float scale, const Rows& out);
    void embed_rows(Encoding encoding, const uint8_t* table, const int32_t* ids, float scale, const Rows& out);
    void gather_rows(const Rows& x, const int32_t* rows, const Rows& out);
    void rms_norm(const Rows& x, const float* weight, float eps, int64_t width, const Rows& out);
    // out [T, head_dim]: cosines, then sines, of position * frequency, the product rounded to float32.
    void rotary_angles(const float* frequencies, const int32_t* positions, const Rows& out);
    void rotary(const Rows& x, const float* cos_sin, int64_t head_dim);
    void gelu_gate(const Rows& gate, const Rows& up, const Rows& out);
    void add(const Rows& x, const Rows& y, const Rows& out);
    void multiply(const Rows& x, const float* factors, bool is_vector, const Rows& out);
    void softcap(const Rows& x, float cap);
    void write_cache(const Rows& x, const int32_t* slots, void* cache, bool is_bfloat16);
    void attention(const AttentionCall& call);
    // Softmax of each row of scores, the num_chosen best (of equals the first) renormalized and scaled.
    void route(const Rows& scores, const float* expert_scales, int64_t num_chosen, int32_t* ids, float* weights);
    // out = the sum, over each row's chosen experts in rising order of their ids, of weight * down(gelu(gate) * up).
    void experts(const Rows& x, const int32_t* ids, const float* weights, int64_t num_chosen,
                 const std::vector<Weight>& gate_up, const std::vector<Weight>& down, const Rows& out);

   private:
    using OnRows = std::function<void(int64_t, int64_t)>;
    // Calls on_rows(first, last) for pieces of 0..num_rows whose work is worth a task each.
    void for_rows(int64_t num_rows, int64_t width, const OnRows& on_rows);
    // Scratch of a purpose, 64-byte aligned, kept and grown as needed.
    void* scratch(int purpose, int64_t num_bytes);
    void attend_tile(const AttentionCall& call, int64_t sequence, int64_t kv_head, int64_t first, int64_t last, bool in_parallel, int thread);

    const Kernels& kernels_;
    const Scheme scheme_;
    Pool pool_;
    std::vector<std::unique_ptr<Pages>> scratch_;
};

}  // namespace gemwright
