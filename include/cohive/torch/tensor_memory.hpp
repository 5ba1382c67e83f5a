/// \file
/// Memory of LibTorch's large tensors that is used again: for trainers whose model lives in host memory.
#pragma once

namespace cohive {

/// From now on LibTorch's tensors of 4 MiB and more in host memory get mappings of their own, in huge pages where the
/// system has them, and a released one serves the next tensor of its size. A backward() makes new gradients every time:
/// taken from the C library these cost page faults, or leave holes that the next ones do not fit into (glibc 2.36
/// cannot use the hole of a released aligned block for another one of the same size), so that a trainer takes one to
/// three models' worth of memory more. Released memory is kept up to a quarter of what is in use, or 64 MiB.
///
/// Once, at the beginning of a program, before other threads use LibTorch; further calls do nothing. Concerns the whole
/// process.
void recycle_tensor_memory();

}  // namespace cohive
