// The Python module: numpy arrays in, numpy arrays out. Checks every shape and index before a kernel sees it, and holds
// the interpreter's lock through operations too short to be worth handing it over.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "operations.hpp"
#include "processor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gemwright {

namespace {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using Values = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

Rows rows(const Floats& x) {
    require(x.shape(1) <= 1 || x.stride(1) == 1, "the values of a row must lie side by side");
    return {x.data(), static_cast<int64_t>(x.shape(0)), static_cast<int64_t>(x.shape(1)), x.stride(0)};
}

void require_alike(const Rows& x, const Rows& y) {
    require(x.num_rows == y.num_rows && x.width == y.width, "the arrays must be of one shape");
}

void require_within(const Indices& indices, int64_t limit) {
    for (size_t i = 0; i < indices.size(); i++)
        if (indices.data()[i] < 0 || indices.data()[i] >= limit) throw std::out_of_range("an index lies outside");
}

Encoding encoding_of(const std::string& name) {
    Encoding encoding;
    require(find_encoding(name.c_str(), &encoding), "no such encoding");
    return encoding;
}

// Hands the interpreter's lock over where an operation takes long enough that others gain by it: taking it back may
// mean waiting for a whole time slice of another thread.
class Unlocked {
   public:
    explicit Unlocked(int64_t num_bytes) {
        if (num_bytes >= (1 << 20)) release_.emplace();
    }

   private:
    std::optional<nb::gil_scoped_release> release_;
};

// Matrices in panels, in memory of their own.
struct Panels {
    Panels(const std::vector<std::pair<std::string, int64_t>>& parts, int64_t width) : pages(total_bytes(parts, width)) {
        uint8_t* at = pages.data();
        for (const auto& [name, num_outputs] : parts) {
            const Encoding encoding = encoding_of(name);
            const int64_t bytes = panel_bytes(encoding, width);
            together.matrices.push_back({encoding, num_outputs, width, bytes, at});
            each.push_back(Weight{{together.matrices.back()}});
            at += bytes * together.matrices.back().num_panels();
        }
    }

    static int64_t total_bytes(const std::vector<std::pair<std::string, int64_t>>& parts, int64_t width) {
        require(!parts.empty() && width > 0, "a weight has outputs and inputs");
        int64_t sum = 0;
        for (const auto& [name, num_outputs] : parts) {
            const int64_t bytes = panel_bytes(encoding_of(name), width);
            require(bytes > 0 && num_outputs > 0, "this encoding does not hold such a width");
            sum += bytes * ((num_outputs + kPanel - 1) / kPanel);
        }
        return sum;
    }

    Pages pages;
    Weight together;            // outputs side by side
    std::vector<Weight> each;   // one by one, as experts use them
};

// Rows as they are stored, to be looked up.
struct StoredRows {
    StoredRows(const std::string& name, int64_t num_rows, int64_t width)
        : encoding(encoding_of(name)), num_rows(num_rows), width(width), row_bytes(stored_row_bytes(encoding, width)), pages(num_rows * row_bytes) {
        require(panel_bytes(encoding, width) > 0, "this encoding does not hold such a width");
    }

    Encoding encoding;
    int64_t num_rows, width, row_bytes;
    Pages pages;
};

void check_ranges(const Rows& query, int64_t num_slots, const Indices& query_start, const Indices& key_begin, const Indices& key_end,
                  const Table& block_table, int64_t block_size) {
    const auto num_sequences = static_cast<int64_t>(block_table.shape(0)), table_width = static_cast<int64_t>(block_table.shape(1));
    require(block_size > 0 && static_cast<int64_t>(query_start.size()) == num_sequences + 1, "one start a sequence, and the end");
    require(static_cast<int64_t>(key_begin.size()) == query.num_rows && static_cast<int64_t>(key_end.size()) == query.num_rows, "one key range a query");
    require(query_start.data()[0] == 0 && query_start.data()[num_sequences] == query.num_rows, "the sequences must own all queries");
    for (int64_t sequence = 0; sequence < num_sequences; sequence++) {
        int64_t begin = table_width * block_size, end = 0;
        require(query_start.data()[sequence] <= query_start.data()[sequence + 1], "starts must rise");
        for (int64_t t = query_start.data()[sequence]; t < query_start.data()[sequence + 1]; t++) {
            require(key_begin.data()[t] >= 0 && key_end.data()[t] <= table_width * block_size, "a key range lies outside its block table");
            begin = std::min<int64_t>(begin, key_begin.data()[t]);
            end = std::max<int64_t>(end, key_end.data()[t]);
        }
        const int32_t* blocks = block_table.data() + sequence * table_width;
        for (int64_t place = begin / block_size; place * block_size < end; place++)
            if (blocks[place] < 0 || (blocks[place] + int64_t{1}) * block_size > num_slots) throw std::out_of_range("a block lies outside the cache");
    }
}

CacheRows cache_rows(const Values& values, int64_t width) {
    const bool is_float = values.dtype() == nb::dtype<float>();
    require(is_float || values.dtype() == nb::dtype<uint16_t>(), "a cache holds float32, or bfloat16 as uint16");
    require(static_cast<int64_t>(values.shape(1)) == width, "a cache row is as wide as its heads");
    return {values.data(), !is_float};
}

void attention(Operations& operations, const Floats& query, const std::optional<Values>& keys, const Values& values, int64_t num_heads,
               int64_t num_kv_heads, const Indices& query_start, const Indices& key_begin, const Indices& key_end, const Table& block_table,
               int64_t block_size, float scale, float softcap, const Floats& out, const std::optional<FloatVector>& rebuild_norm,
               const std::optional<FloatVector>& rebuild_frequencies) {
    AttentionCall call{};
    call.query = rows(query);
    call.out = rows(out);
    require_alike(call.query, call.out);
    require(num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0 && call.query.width % num_heads == 0, "heads must divide a row");
    call.num_heads = num_heads;
    call.num_kv_heads = num_kv_heads;
    call.head_dim = call.query.width / num_heads;
    call.values = cache_rows(values, num_kv_heads * call.head_dim);
    call.keys = {nullptr, call.values.is_bfloat16};
    if (keys) {
        call.keys = cache_rows(*keys, num_kv_heads * call.head_dim);
        require(keys->shape(0) == values.shape(0), "as many keys as values");
    }
    require(keys.has_value() != rebuild_norm.has_value() && rebuild_norm.has_value() == rebuild_frequencies.has_value(), "keys are stored or rebuilt");
    if (rebuild_norm) {
        require(static_cast<int64_t>(rebuild_norm->size()) == call.head_dim && static_cast<int64_t>(rebuild_frequencies->size()) * 2 == call.head_dim,
                "rebuilt keys need a norm and frequencies of a head's size");
        call.rebuild_norm = rebuild_norm->data();
        call.rebuild_frequencies = rebuild_frequencies->data();
    }
    check_ranges(call.query, static_cast<int64_t>(values.shape(0)), query_start, key_begin, key_end, block_table, block_size);
    call.query_start = query_start.data();
    call.key_begin = key_begin.data();
    call.key_end = key_end.data();
    call.block_table = block_table.data();
    call.num_sequences = static_cast<int64_t>(block_table.shape(0));
    call.table_width = static_cast<int64_t>(block_table.shape(1));
    call.block_size = block_size;
    call.scale = scale;
    call.softcap = softcap;
    int64_t num_keys = 0;
    for (size_t t = 0; t < key_begin.size(); t++) num_keys += std::max(0, key_end.data()[t] - key_begin.data()[t]);
    const Unlocked unlocked(num_keys * call.query.width * 4);
    operations.attention(call);
}

void pack(Operations& operations, Panels& panels, int64_t matrix, int64_t first, const Bytes& stored) {
    require(matrix >= 0 && matrix < static_cast<int64_t>(panels.each.size()), "no such matrix");
    const Matrix& target = panels.together.matrices[matrix];
    const auto num_rows = static_cast<int64_t>(stored.shape(0));
    require(first >= 0 && first % kPanel == 0 && first + num_rows <= target.num_outputs, "rows begin at a panel, within the matrix");
    require(static_cast<int64_t>(stored.shape(1)) == stored_row_bytes(target.encoding, target.width) && stored.stride(1) == 1, "rows must be as stored");
    const Unlocked unlocked(num_rows * stored.shape(1));
    operations.pack(target, panels.pages.data() + (target.data - panels.pages.data()), first, stored.data(), stored.stride(0), num_rows);
}

void linear(Operations& operations, const Floats& x, const Panels& panels, const Floats& out) {
    const Rows from = rows(x), to = rows(out);
    require(from.num_rows == to.num_rows && from.width == panels.together.width() && to.width == panels.together.num_outputs(), "shapes do not fit the weight");
    const Unlocked unlocked(panels.pages.num_bytes() * from.num_rows);
    operations.linear(from, panels.together, to);
}

void experts(Operations& operations, const Floats& x, const Table& ids, const nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& weights,
             const Panels& gate_up, const Panels& down, const Floats& out) {
    const Rows from = rows(x), to = rows(out);
    require_alike(from, to);
    require(static_cast<int64_t>(ids.shape(0)) == from.num_rows && ids.shape(0) == weights.shape(0) && ids.shape(1) == weights.shape(1), "one choice a row");
    const Weight& first = gate_up.each.front();
    require(gate_up.each.size() == down.each.size() && first.width() == from.width && down.each.front().num_outputs() == to.width &&
                down.each.front().width() * 2 == first.num_outputs(),
            "experts of other shapes");
    for (size_t i = 0; i < ids.size(); i++)
        if (ids.data()[i] < 0 || ids.data()[i] >= static_cast<int64_t>(gate_up.each.size())) throw std::out_of_range("no such expert");
    const Unlocked unlocked(gate_up.pages.num_bytes());
    operations.experts(from, ids.data(), weights.data(), static_cast<int64_t>(ids.shape(1)), gate_up.each, down.each, to);
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> allocate(int64_t num_bytes) {
    require(num_bytes > 0, "nothing to allocate");
    auto* pages = new Pages(num_bytes);
    nb::capsule owner(pages, [](void* held) noexcept { delete static_cast<Pages*>(held); });
    return {pages->data(), {static_cast<size_t>(num_bytes)}, owner};
}

}  // namespace

NB_MODULE(_kernels, module) {
    module.attr("PANEL_OUTPUTS") = kPanel;
    module.def("runnable_levels", [] {
        std::vector<std::string> names;
        for (const char* name : runnable_levels()) names.emplace_back(name);
        return names;
    });
    module.def("panel_bytes", [](const std::string& encoding, int64_t width) { return panel_bytes(encoding_of(encoding), width); }, "encoding"_a, "width"_a);
    module.def("stored_row_bytes", [](const std::string& encoding, int64_t width) { return stored_row_bytes(encoding_of(encoding), width); }, "encoding"_a, "width"_a);
    module.def("allocate", &allocate, "num_bytes"_a);

    nb::class_<Panels>(module, "Panels")
        .def(nb::init<const std::vector<std::pair<std::string, int64_t>>&, int64_t>(), "matrices"_a, "width"_a)
        .def_prop_ro("nbytes", [](const Panels& panels) { return panels.pages.num_bytes(); })
        .def_prop_ro("num_outputs", [](const Panels& panels) { return panels.together.num_outputs(); });
    nb::class_<StoredRows>(module, "StoredRows")
        .def(nb::init<const std::string&, int64_t, int64_t>(), "encoding"_a, "num_rows"_a, "width"_a)
        .def_prop_ro("nbytes", [](const StoredRows& table) { return table.num_rows * table.row_bytes; })
        .def("fill", [](StoredRows& table, int64_t first, const Bytes& stored) {
            const auto num_rows = static_cast<int64_t>(stored.shape(0));
            require(first >= 0 && first + num_rows <= table.num_rows && static_cast<int64_t>(stored.shape(1)) == table.row_bytes && stored.stride(1) == 1, "rows must be as stored");
            for (int64_t row = 0; row < num_rows; row++)
                std::memcpy(table.pages.data() + (first + row) * table.row_bytes, stored.data() + row * stored.stride(0), table.row_bytes);
        }, "first"_a, "stored"_a);

    nb::class_<Operations>(module, "Operations")
        .def("__init__", [](Operations* place, const std::string& level, bool rounds_activations, int num_threads) {
            const Kernels* kernels = find_kernels(level.c_str());
            require(kernels != nullptr, "no such level of kernels, or not for this processor");
            new (place) Operations(*kernels, rounds_activations ? Scheme::int16x : Scheme::exact, num_threads);
        }, "level"_a, "rounds_activations"_a, "num_threads"_a)
        .def_prop_ro("level", [](const Operations& operations) { return operations.kernels().name; })
        .def_prop_ro("num_threads", &Operations::num_threads)
        .def_prop_ro("scratch_bytes", &Operations::scratch_bytes)
        .def("pack", &pack, "panels"_a, "matrix"_a, "first"_a, "stored"_a)
        .def("linear", &linear, "x"_a, "panels"_a, "out"_a)
        .def("embed", [](Operations& operations, const Panels& table, const Indices& ids, float scale, const Floats& out) {
            const Rows to = rows(out);
            require(static_cast<int64_t>(ids.size()) == to.num_rows && to.width == table.together.width(), "one row an id, as wide as the table");
            require_within(ids, table.together.matrices.front().num_outputs);
            operations.embed(table.together.matrices.front(), ids.data(), scale, to);
        }, "table"_a, "ids"_a, "scale"_a, "out"_a)
        .def("embed_rows", [](Operations& operations, const StoredRows& table, const Indices& ids, float scale, const Floats& out) {
            const Rows to = rows(out);
            require(static_cast<int64_t>(ids.size()) == to.num_rows && to.width == table.width, "one row an id, as wide as the table");
            require_within(ids, table.num_rows);
            operations.embed_rows(table.encoding, table.pages.data(), ids.data(), scale, to);
        }, "table"_a, "ids"_a, "scale"_a, "out"_a)
        .def("gather_rows", [](Operations& operations, const Floats& x, const Indices& chosen, const Floats& out) {
            const Rows from = rows(x), to = rows(out);
            require(static_cast<int64_t>(chosen.size()) == to.num_rows && from.width == to.width, "one row an index");
            require_within(chosen, from.num_rows);
            operations.gather_rows(from, chosen.data(), to);
        }, "x"_a, "rows"_a, "out"_a)
        .def("rms_norm", [](Operations& operations, const Floats& x, const std::optional<FloatVector>& weight, float eps, int64_t width, const Floats& out) {
            const Rows from = rows(x), to = rows(out);
            require_alike(from, to);
            require(width > 0 && from.width % width == 0 && (!weight || static_cast<int64_t>(weight->size()) == width), "a norm's width must divide a row");
            operations.rms_norm(from, weight ? weight->data() : nullptr, eps, width, to);
        }, "x"_a, "weight"_a.none(), "eps"_a, "width"_a, "out"_a)
        .def("rotary_angles", [](Operations& operations, const FloatVector& frequencies, const Indices& positions, const Floats& out) {
            const Rows to = rows(out);
            require(to.stride == to.width || to.num_rows <= 1, "angles lie row behind row");
            require(static_cast<int64_t>(positions.size()) == to.num_rows && static_cast<int64_t>(frequencies.size()) * 2 == to.width, "one row a position");
            operations.rotary_angles(frequencies.data(), positions.data(), to);
        }, "frequencies"_a, "positions"_a, "out"_a)
        .def("rotary", [](Operations& operations, const Floats& x, const Floats& angles) {
            const Rows at = rows(x), turned = rows(angles);
            require(turned.num_rows == at.num_rows && turned.width > 0 && at.width % turned.width == 0, "one row of angles a row, of a head's size");
            require(turned.stride == turned.width || turned.num_rows <= 1, "angles lie row behind row");
            operations.rotary(at, turned.data, turned.width);
        }, "x"_a, "angles"_a)
        .def("gelu_gate", [](Operations& operations, const Floats& gate, const Floats& up, const Floats& out) {
            const Rows first = rows(gate), second = rows(up), to = rows(out);
            require_alike(first, second);
            require_alike(first, to);
            operations.gelu_gate(first, second, to);
        }, "gate"_a, "up"_a, "out"_a)
        .def("add", [](Operations& operations, const Floats& x, const Floats& y, const Floats& out) {
            const Rows first = rows(x), second = rows(y), to = rows(out);
            require_alike(first, second);
            require_alike(first, to);
            operations.add(first, second, to);
        }, "x"_a, "y"_a, "out"_a)
        .def("multiply", [](Operations& operations, const Floats& x, const FloatVector& factors, const Floats& out) {
            const Rows from = rows(x), to = rows(out);
            require_alike(from, to);
            require(factors.size() == 1 || static_cast<int64_t>(factors.size()) == from.width, "one factor, or one a column");
            operations.multiply(from, factors.data(), factors.size() > 1, to);
        }, "x"_a, "factors"_a, "out"_a)
        .def("softcap", [](Operations& operations, const Floats& x, float cap) { operations.softcap(rows(x), cap); }, "x"_a, "cap"_a)
        .def("write_cache", [](Operations& operations, const Floats& x, const Indices& slots, const nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>& cache) {
            const Rows from = rows(x);
            const CacheRows to = cache_rows(cache, from.width);
            require(static_cast<int64_t>(slots.size()) == from.num_rows, "one slot a row");
            require_within(slots, static_cast<int64_t>(cache.shape(0)));
            operations.write_cache(from, slots.data(), cache.data(), to.is_bfloat16);
        }, "x"_a, "slots"_a, "cache"_a)
        .def("attention", &attention, "query"_a, "keys"_a.none(), "values"_a, "num_heads"_a, "num_kv_heads"_a, "query_start"_a, "key_begin"_a, "key_end"_a,
             "block_table"_a, "block_size"_a, "scale"_a, "softcap"_a, "out"_a, "rebuild_norm"_a.none(), "rebuild_frequencies"_a.none())
        .def("route", [](Operations& operations, const Floats& scores, const FloatVector& expert_scales, const nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& ids,
                         const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& weights) {
            const Rows from = rows(scores);
            require(static_cast<int64_t>(expert_scales.size()) == from.width && static_cast<int64_t>(ids.shape(0)) == from.num_rows && ids.shape(0) == weights.shape(0) &&
                        ids.shape(1) == weights.shape(1) && static_cast<int64_t>(ids.shape(1)) <= from.width,
                    "shapes do not fit the scores");
            operations.route(from, expert_scales.data(), static_cast<int64_t>(ids.shape(1)), ids.data(), weights.data());
        }, "scores"_a, "expert_scales"_a, "ids"_a, "weights"_a)
        .def("experts", &experts, "x"_a, "ids"_a, "weights"_a, "gate_up"_a, "down"_a, "out"_a);
}

}  // namespace gemwright
