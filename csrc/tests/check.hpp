// What the test programs share: a printed seed, random numbers, arrays of exact size, and failing loudly.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "../kernels.hpp"

namespace gemwright {

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kWide;
#endif

inline int num_failures = 0;

#define CHECK(condition, ...)                                                                 \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            if (++num_failures <= 20) {                                                       \
                std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                   \
                std::printf(__VA_ARGS__);                                                     \
                std::printf("\n");                                                            \
            }                                                                                 \
        }                                                                                     \
    } while (0)

// The levels that can run here.
inline std::vector<const Kernels*> levels() {
    std::vector<const Kernels*> all{&kPortable};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        all.push_back(&kAvx2);
        all.push_back(&kWide);
    }
#endif
    return all;
}

// The seed: the program's argument, or a fresh one.
inline uint64_t seed_of(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::random_device{}();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    return seed;
}

// An array of exactly this many elements on the heap, so that an address sanitizer sees a step beyond it.
template <typename T>
struct Exact {
    std::unique_ptr<T[]> data;
    int64_t size;

    explicit Exact(int64_t count) : data(new T[static_cast<size_t>(count)]), size(count) {
        std::memset(static_cast<void*>(data.get()), 0xFF, static_cast<size_t>(count) * sizeof(T));  // NaN, as floats
    }
    T* get() const { return data.get(); }
    T& operator[](int64_t i) const { return data[static_cast<size_t>(i)]; }
};

inline bool same_bits(const float* a, const float* b, int64_t count) { return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0; }

inline int report(const char* name) {
    std::printf("%s: %s (%d failures)\n", name, num_failures == 0 ? "passed" : "FAILED", num_failures);
    return num_failures == 0 ? 0 : 1;
}

}  // namespace gemwright
