// A link to a device that is none, for tests of what is copied and in which order.
#pragma once

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cohive/train/device_link.hpp"

namespace cohive::libtorch {

/// What was asked of a link: "noted", "follow", "hold back", "copy" with the address of a gradient, and "upload" with
/// the number of bytes that are queued at once. Copies are made when somebody waits for them.
struct FakeLink final : train::DeviceLink {
  struct Entry {
    std::string what;
    const void* from = nullptr;
    std::size_t bytes = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  struct FakeTransfer final : train::Transfer {
    FakeTransfer(FakeLink& of, std::size_t bytes) : link(of), bytes(bytes) {}
    FakeLink& link;
    std::vector<std::uint8_t> bytes;
    std::vector<std::function<void()>> queued;
    std::vector<std::shared_ptr<const void>> kept;

    MutableBytes memory() const noexcept override { return {const_cast<std::uint8_t*>(bytes.data()), bytes.size()}; }
    void follow_trainer() override { link.log.push_back({"follow"}); }
    void download(const void* from, MutableBytes to) override {
      if (link.refusing) throw std::runtime_error("refused");
      link.log.push_back({"copy", from});
      queued.push_back([=] { std::memcpy(to.data(), from, to.size()); });
    }
    void upload(ByteView from, void* to) override {
      if (link.refusing) throw std::runtime_error("refused");
      link.log.push_back({"upload", nullptr, from.size()});
      queued.push_back([=] { std::memcpy(to, from.data(), from.size()); });
    }
    void hold_back_trainer() override {
      link.log.push_back({"hold back"});
      link.held_back = [this] { wait(); };
    }
    void keep(std::shared_ptr<const void> owner) override { kept.push_back(std::move(owner)); }
    Task<void> done() override {
      wait();
      co_return;
    }
    void wait() override {
      for (const auto& copy : std::exchange(queued, {})) copy();
      kept.clear();
    }
  };

  std::unique_ptr<train::Transfer> open(std::size_t bytes) override {
    ++opened;
    return std::make_unique<FakeTransfer>(*this, bytes);
  }
  void sync_with_caller_stream() override { log.push_back({"noted"}); }

  std::vector<Entry> log;
  int opened = 0;
  bool refusing = false;
  std::function<void()> held_back;  // what the trainer's next work waits for
};

}  // namespace cohive::libtorch
