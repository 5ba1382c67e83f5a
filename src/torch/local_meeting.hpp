// The ranks of one machine find each other: rank 0 serves a TCPStore on the loopback, and a file of the user says
// where.
//   rank 0: port and a random word > the file      rank i: reads it > the store
//   rank i > the store: that it has come           rank 0 > the store: that all have; the file is removed
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cohive/torch/local_group.hpp"

namespace cohive::libtorch {

inline constexpr const char* kLoopback = "127.0.0.1";  ///< where ranks listen

/// Returns the store of this group once all ranks have come. Throws std::runtime_error where one does not come in time,
/// or comes twice, and std::invalid_argument where the file cannot be meant.
c10::intrusive_ptr<c10d::Store> meet(const LocalGroupOptions& options);

}  // namespace cohive::libtorch
