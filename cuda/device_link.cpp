#include "cohive/train/device_link.hpp"

#include <mutex>
#include <vector>

#include "cohive/cuda/backend.hpp"
#include "cohive/cuda/device.hpp"

namespace cohive::cuda {
namespace {

/// Where the trainer queues its work, and how far that had come.
class Trainer {
 public:
  Trainer(Event noted, std::function<CUstream_st*()> stream) : noted_(std::move(noted)), find_(std::move(stream)) {}

  /// An error here is the device's, and comes again with the copies.
  void note() {
    CUstream_st* const stream = find_ ? find_() : nullptr;
    const std::lock_guard lock(mutex_);
    stream_ = stream;
    (void)noted_.record(stream);
  }
  Result<> hold_back(CUstream_st* stream) {
    const std::lock_guard lock(mutex_);
    return noted_.hold_back(stream);
  }
  CUstream_st* stream() {
    const std::lock_guard lock(mutex_);
    return stream_;
  }

 private:
  std::mutex mutex_;
  Event noted_;
  const std::function<CUstream_st*()> find_;
  CUstream_st* stream_ = nullptr;
};

class StreamTransfer final : public train::Transfer {
 public:
  StreamTransfer(Runtime& runtime, std::shared_ptr<Trainer> trainer, HostBuffer memory, Event copied, Stream stream)
      : runtime_(runtime),
        trainer_(std::move(trainer)),
        memory_(std::move(memory)),
        copied_(std::move(copied)),
        stream_(std::move(stream)) {}

  MutableBytes memory() const noexcept override { return memory_.bytes(); }
  void follow_trainer() override { trainer_->hold_back(stream_.native()).value(); }
  void download(const void* from, MutableBytes to) override { stream_.download_async(from, to).value(); }
  void upload(ByteView from, void* to) override { stream_.upload_async(from, to).value(); }
  void hold_back_trainer() override {
    copied_.record(stream_.native()).value();
    copied_.hold_back(trainer_->stream()).value();
  }
  void keep(std::shared_ptr<const void> owner) override { kept_.push_back(std::move(owner)); }

  Task<void> done() override {
    const auto result = co_await stream_.done(runtime_);
    kept_.clear();
    result.value();
  }
  void wait() override {
    const auto result = stream_.synchronize();
    kept_.clear();
    result.value();
  }

 private:
  Runtime& runtime_;
  const std::shared_ptr<Trainer> trainer_;
  const HostBuffer memory_;
  std::vector<std::shared_ptr<const void>> kept_;
  Event copied_;
  Stream stream_;  // the first to go: its copies use all others
};

class StreamLink final : public train::DeviceLink {
 public:
  StreamLink(Runtime& runtime, int device, std::shared_ptr<Trainer> trainer)
      : runtime_(runtime), device_(device), trainer_(std::move(trainer)) {}

  std::unique_ptr<train::Transfer> open(std::size_t bytes) override {
    auto memory = HostBuffer::create(bytes).value();
    auto copied = Event::create(device_).value();
    return std::make_unique<StreamTransfer>(runtime_, trainer_, std::move(memory), std::move(copied),
                                            Stream::create(device_).value());
  }
  void sync_with_caller_stream() override { trainer_->note(); }

 private:
  Runtime& runtime_;
  const int device_;
  const std::shared_ptr<Trainer> trainer_;
};

}  // namespace

Result<std::shared_ptr<train::DeviceLink>> make_link(Runtime& runtime, BackendOptions options) {
  auto noted = Event::create(options.device);
  if (!noted) return noted.error();
  auto trainer = std::make_shared<Trainer>(std::move(*noted), std::move(options.trainer_stream));
  return std::make_shared<StreamLink>(runtime, options.device, std::move(trainer));
}

}  // namespace cohive::cuda
