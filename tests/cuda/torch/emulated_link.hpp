// Links models in the host's memory as those on a GPU are, by the emulated device. LibTorch computes with host memory
// at once and on no stream: where a GPU's stream is held back until parameters are there, its thread waits.
#pragma once

#include "cohive/cuda/backend.hpp"

namespace cohive::cuda::emulated {

class WaitingTransfer final : public train::Transfer {
 public:
  explicit WaitingTransfer(std::unique_ptr<train::Transfer> transfer) : transfer_(std::move(transfer)) {}
  MutableBytes memory() const noexcept override { return transfer_->memory(); }
  void follow_trainer() override { transfer_->follow_trainer(); }
  void download(const void* from, MutableBytes to) override { transfer_->download(from, to); }
  void upload(ByteView from, void* to) override { transfer_->upload(from, to); }
  void hold_back_trainer() override {
    transfer_->hold_back_trainer();
    transfer_->wait();
  }
  void keep(std::shared_ptr<const void> owner) override { transfer_->keep(std::move(owner)); }
  Task<void> done() override { return transfer_->done(); }
  void wait() override { transfer_->wait(); }

 private:
  const std::unique_ptr<train::Transfer> transfer_;
};

class WaitingLink final : public train::DeviceLink {
 public:
  explicit WaitingLink(std::shared_ptr<train::DeviceLink> link) : link_(std::move(link)) {}
  std::unique_ptr<train::Transfer> open(std::size_t bytes) override {
    return std::make_unique<WaitingTransfer>(link_->open(bytes));
  }
  void sync_with_caller_stream() override { link_->sync_with_caller_stream(); }

 private:
  const std::shared_ptr<train::DeviceLink> link_;
};

inline std::shared_ptr<train::DeviceLink> make_waiting_link(Runtime& runtime) {
  return std::make_shared<WaitingLink>(make_link(runtime).value());
}

}  // namespace cohive::cuda::emulated
