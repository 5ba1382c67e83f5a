// Stands in for the headers of Gloo, which LibTorch's packages leave out: they have its library, and
// ProcessGroupGloo.hpp, which needs these names. Nothing here is made or called by cohive: ProcessGroupGloo is
// LibTorch's own code throughout, and holds pointers to such objects alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
