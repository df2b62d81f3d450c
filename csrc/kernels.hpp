// What every level offers, as a table of functions, and the plain structs that they take.
//
// Nothing here knows Python. A kernel does one task's share of an operation on the calling thread; operations.cpp cuts
// an operation into tasks and hands them to the pool. The row law holds in each of them: what a row's result is made
// of, and in which order it is summed, depends neither on the other rows nor on how tasks are cut.
#pragma once

#include <cstdint>

#include "matrix.hpp"

namespace gemwright {

// Float32 rows: row t begins at data + t * stride.
struct Rows {
    float* data;
    int64_t num_rows;
    int64_t width;
    int64_t stride;

    float* row(int64_t t) const { return data + t * stride; }
};

// Rows rounded to 16-bit integers, each by its own scale: x is about codes * scale. Codes of a row are padded with
// zeros to `width`, a multiple of 32; `sums` holds, for every 16 neighbors, the sum of their codes.
struct QuantizedRows {
    const int16_t* codes;   // [num_rows, width]
    const int32_t* sums;    // [num_rows, width / 16]
    const float* scales;    // [num_rows]
    int64_t num_rows;
    int64_t width;
};

// Keys or values of one layer as the cache holds them, [slots, num_kv_heads * head_dim].
struct CacheRows {
    const void* data;   // null where keys are rebuilt from values
    bool is_bfloat16;   // else float32
};

// One sequence's share of an attention call, and the numbers that all have in common.
struct AttentionCall {
    Rows query;                  // [T, num_heads * head_dim]
    Rows out;                    // the same shape
    CacheRows keys, values;
    int64_t num_heads, num_kv_heads, head_dim;
    const int32_t* query_start;  // [num_sequences + 1]
    const int32_t* key_begin;    // [T]
    const int32_t* key_end;      // [T]
    const int32_t* block_table;  // [num_sequences, table_width]
    int64_t num_sequences, table_width, block_size;
    float scale;
    float softcap;               // 0: none
    const float* rebuild_norm;   // [head_dim] or null: keys are RoPE(values * norm) at their own positions
    const float* rebuild_frequencies;  // [head_dim / 2]
};

// Keys are summed in chunks that begin at multiples of kKeyChunk positions whatever the block size, each chunk by
// itself; the chunks of a row are then merged in rising order. So neither the place where a prompt was cut nor the
// number of threads changes a bit.
constexpr int64_t kKeyChunk = 256;

// The outcome of a row's chunk, or of several merged: the largest score, the sum of exp(score - largest), and the
// values weighted so.
struct Partial {
    float largest;
    float total;
    float* summed;  // [head_dim]
};

struct Kernels {
    const char* name;
    int lanes;

    // linear.hpp
    // Rounds one row of `width` floats to codes, sums and scale (see QuantizedRows); a row of zeros has scale 0.
    void (*quantize_row)(const float* x, int64_t width, int64_t padded_width, int16_t* codes, int32_t* sums, float* scale);
    // Panels first..last of a matrix times all rows, from stored codes and 16-bit activations; writes
    // out.row(t)[first_output + n] for the outputs n of these panels that the matrix has.
    void (*multiply_int16)(const Matrix& matrix, int64_t first, int64_t last, const QuantizedRows& x, const Rows& out, void* scratch);
    // The same from the float32 value of each weight and float32 activations.
    void (*multiply_float)(const Matrix& matrix, int64_t first, int64_t last, const Rows& x, const Rows& out, void* scratch);
    // out[width] = the float32 values of row `row`, times factor.
    void (*unpack_row)(const Matrix& matrix, int64_t row, float factor, float* out);

    // rows.hpp; all on rows first..last
    void (*rms_norm)(const Rows& x, const float* weight, float eps, int64_t width, const Rows& out, int64_t first, int64_t last);
    // out [T, head_dim]: head_dim / 2 cosines, then as many sines, of position * frequency, the product rounded to float32.
    void (*rotary_angles)(const float* frequencies, const int32_t* positions, const Rows& out, int64_t first, int64_t last);
    // cos_sin: rows of rotary_angles, one behind the other.
    void (*rotary)(const Rows& x, const float* cos_sin, int64_t head_dim, int64_t first, int64_t last);
    void (*gelu_gate)(const Rows& gate, const Rows& up, const Rows& out, int64_t first, int64_t last);
    void (*add)(const Rows& x, const Rows& y, const Rows& out, int64_t first, int64_t last);
    // factors: one number, or as many as a row is wide.
    void (*multiply)(const Rows& x, const float* factors, bool is_vector, const Rows& out, int64_t first, int64_t last);
    void (*softcap)(const Rows& x, float cap, int64_t first, int64_t last);
    // Rounds to bfloat16 (nearest, ties to even) or copies: rows first..last of x into slots of a cache.
    void (*write_cache)(const Rows& x, const int32_t* slots, void* cache, bool is_bfloat16, int64_t first, int64_t last);

    // attention.hpp
    // For the query rows first..last of `sequence` and one K/V head: the partial of every (row, query head of the
    // group) over the keys of one chunk (positions chunk * kKeyChunk ...). partials[(row - first) * group + head].
    // A row that sees no key of the chunk gets total 0 and largest -infinity.
    void (*attend_chunk)(const AttentionCall& call, int64_t sequence, int64_t kv_head, int64_t first, int64_t last, int64_t chunk, Partial* partials, void* scratch);
    // into = into merged with next (which comes after it); a partial of total 0 changes nothing.
    void (*merge)(Partial& into, const Partial& next, int64_t head_dim);
    // out[head_dim] = summed / total, zeros where total is 0.
    void (*finish)(const Partial& partial, int64_t head_dim, float* out);
};

// Bytes of scratch that one thread needs for multiply_int16, multiply_float and attend_chunk; 64-byte aligned.
int64_t multiply_scratch_bytes(int64_t width);
int64_t attend_scratch_bytes(int64_t head_dim, int64_t num_rows_times_group);

// The most query rows (times heads of a group) that attend_chunk is given at once.
constexpr int64_t kAttendRows = 64;

// How attend_chunk cuts its scratch: floats from one row's scores to the next, and keys at work at once.
constexpr int64_t kScoreStride = kKeyChunk + 16;
constexpr int64_t kTileKeys = 24;

}  // namespace gemwright
