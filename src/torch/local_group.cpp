#include "cohive/torch/local_group.hpp"

#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "cohive/core/log.hpp"
#include "torch/local_meeting.hpp"

namespace cohive {
namespace {

constexpr std::size_t kMostRanks = 1024;

std::size_t number(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  if (!text) return otherwise;
  const std::string_view view(text);
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(view.begin(), view.end(), value);
  if (error != std::errc() || end != view.end())
    throw std::invalid_argument(log::format("{} should be a number, not {}", name, log::quoted(view)));
  return value;
}

void check(const LocalGroupOptions& options) {
  if (options.size < 1 || options.size > kMostRanks || options.rank >= options.size)
    throw std::invalid_argument(
        log::format("cohive::LocalGroup: rank {} of {}: a group has 1 to {} ranks, counted from 0", options.rank,
                    options.size, kMostRanks));
}

std::chrono::milliseconds milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration);
}

[[noreturn]] void fail(const std::string& why) {
  throw std::runtime_error("cohive::LocalGroup: a rank of this peer is gone, and the peer with it: " + why);
}

/// Does what all ranks do. Errors of c10d come with a trace of LibTorch's own calls, which is left out.
template <class Work>
void together(Work work) {
  try {
    work()->wait();
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const LocalGroupOptions& options) {
  const auto store = libtorch::meet(options);
  const auto how = c10d::ProcessGroupGloo::Options::create(milliseconds(options.rank_timeout));
  how->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(libtorch::kLoopback));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(options.rank),
                                                     static_cast<int>(options.size), how);
}

}  // namespace

LocalGroupOptions LocalGroupOptions::from_environment() {
  LocalGroupOptions options;
  options.rank = number("LOCAL_RANK", 0);
  options.size = number("LOCAL_WORLD_SIZE", 1);
  check(options);
  const auto text = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  options.meeting_path = text("COHIVE_LOCAL_MEETING");
  if (!options.meeting_path.empty()) return options;
  const std::string folder = text("XDG_RUNTIME_DIR"), port = text("MASTER_PORT");
  options.meeting_path = log::format("{}/cohive-{}-{}.ranks", folder.empty() ? "/tmp" : folder, ::geteuid(),
                                     port.empty() ? std::to_string(::getppid()) : port);
  return options;
}

struct LocalGroup::Impl {
  std::size_t rank = 0, size = 1;
  torch::Device device = torch::kCPU;
  c10::intrusive_ptr<c10d::Backend> backend = nullptr;  // none for one rank
};

LocalGroup::LocalGroup(LocalGroupOptions options) {
  check(options);
  impl_ = std::make_unique<Impl>(Impl{options.rank, options.size});
  if (size() == 1) return;
  try {
    impl_->backend = make_gloo(options);
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  }
}

LocalGroup::LocalGroup(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device) {
  if (!backend) throw std::invalid_argument("cohive::LocalGroup: there is no process group");
  const auto rank = static_cast<std::size_t>(backend->getRank()), size = static_cast<std::size_t>(backend->getSize());
  impl_ = std::make_unique<Impl>(Impl{rank, size, device, std::move(backend)});
}

LocalGroup::~LocalGroup() = default;

std::size_t LocalGroup::rank() const noexcept {
  return impl_->rank;
}
std::size_t LocalGroup::size() const noexcept {
  return impl_->size;
}
c10::Device LocalGroup::device() const noexcept {
  return impl_->device;
}

void LocalGroup::sum(const at::Tensor& values) {
  if (size() == 1) return;
  std::vector<torch::Tensor> tensors{values};
  together([&] { return impl_->backend->reduce(tensors); });  // to rank 0, which is the default
}

void LocalGroup::broadcast(const at::Tensor& values) {
  if (size() == 1) return;
  std::vector<torch::Tensor> tensors{values.view({-1}).view(torch::kUInt8)};
  together([&] { return impl_->backend->broadcast(tensors); });
}

void LocalGroup::sum(float* values, std::size_t count) {
  const auto host = torch::from_blob(values, {static_cast<std::int64_t>(count)}, torch::kFloat32);
  const auto there = host.to(device());
  sum(there);
  if (!there.is_same(host)) host.copy_(there);
}

void LocalGroup::broadcast(void* bytes, std::size_t count) {
  const auto host = torch::from_blob(bytes, {static_cast<std::int64_t>(count)}, torch::kUInt8);
  const auto there = host.to(device());
  broadcast(there);
  if (!there.is_same(host)) host.copy_(there);
}

}  // namespace cohive
