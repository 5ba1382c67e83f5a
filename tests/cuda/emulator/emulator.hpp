// A GPU that is none: runs kernels on the processor and finds what is wrong with them. It is an emulation: it says
// nothing of speed, nor of what a real GPU does beyond the rules of CUDA's memory model that are checked here.
//
// Blocks run one after another; the threads of a block are fibers, which run until a barrier in an order that can be
// chosen. The compiler calls us for each load and store of a kernel (-fsanitize-coverage=trace-loads,trace-stores).
// Found are accesses outside of a buffer or of a shared variable, to memory that was freed or is another device's,
// misaligned ones, those of two threads that no barrier keeps apart (races), and barriers that not all threads of a
// block come to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace cohive::cuda::emulated {

/// Bytes in front of each shared variable.
inline constexpr std::size_t kSharedZone = 256;

/// In which the threads of a block run, and blocks of a grid.
enum class Order { forward, reverse, random };
void set_order(Order order, std::uint32_t seed = 1);

/// Sentences on what was wrong since the last call, the first few of each launch.
std::vector<std::string> take_findings();

/// Names of the kernels that have run since the last call.
std::set<std::string> take_kernels();

/// Memory of a device, with zones around it that no kernel may touch.
void* allocate(std::size_t bytes, int device);
/// False where it is none, or not the begin of one. What kernels do with it afterwards is found.
bool release(void* memory);
/// Finds memory of another device than the current one: a real driver frees it, and begins to use the current one.
void note_freeing(const void* memory, int current_device);

/// Runs a kernel of a device to its end. One at a time.
void run(const char* kernel, int device, unsigned blocks, unsigned threads, const std::function<void()>& body);

// What a kernel asks for.
struct Index {
  unsigned x = 0, y = 0, z = 0;
};
Index thread_index();
Index block_index();
Index block_size();
Index grid_size();
void barrier();
/// A plain access.
void note_access(const void* address, std::size_t bytes, bool writes);
/// An access that no other one races with but a plain one.
void note_atomic(const void* address, std::size_t bytes);
/// The value of another lane of this warp, which all lanes of it exchange at the same time.
std::uint32_t exchange(std::uint32_t value, unsigned lane);

}  // namespace cohive::cuda::emulated
