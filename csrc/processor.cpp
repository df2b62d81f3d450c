#include "processor.hpp"

#include <cstring>

namespace gemwright {

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#endif

namespace {

struct Level {
    const Kernels* kernels;
    bool runs;
};

// Best first. The compiler's own test reads CPUID and asks the system whether it saves the wide registers.
std::vector<Level> levels() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    return {{&kAvx512, avx512}, {&kAvx2, avx2}, {&kPortable, true}};
#else
    return {{&kPortable, true}};
#endif
}

}  // namespace

const Kernels* find_kernels(const char* name) {
    for (const Level& level : levels())
        if (level.runs && std::strcmp(level.kernels->name, name) == 0) return level.kernels;
    return nullptr;
}

std::vector<const char*> runnable_levels() {
    std::vector<const char*> names;
    for (const Level& level : levels())
        if (level.runs) names.push_back(level.kernels->name);
    return names;
}

}  // namespace gemwright
