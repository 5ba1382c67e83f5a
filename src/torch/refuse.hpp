// What cohive's LibTorch front end cannot take is refused in one way.
#pragma once

#include <stdexcept>
#include <string>

namespace cohive::libtorch {

[[noreturn]] inline void refuse(const std::string& sentence) {
  throw std::invalid_argument("cohive::Optimizer: " + sentence);
}

inline void demand(bool fine, const std::string& sentence) {
  if (!fine) refuse(sentence);
}

}  // namespace cohive::libtorch
