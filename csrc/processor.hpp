// Which levels of kernels this processor, under this system, can run.
#pragma once

#include <vector>

#include "kernels.hpp"

namespace gemwright {

// The kernels of a level by name ("portable", "avx2", "avx512"); null where they are not built or cannot run here.
const Kernels* find_kernels(const char* name);
// The names of the levels that can run here, best first.
std::vector<const char*> runnable_levels();

}  // namespace gemwright
