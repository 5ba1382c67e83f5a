// What a test tells a trainer by its standard input: the first byte to begin, and its end to stop.
#pragma once

#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

class Told {
 public:
  Told() {
    std::thread([state = state_] {
      char byte;
      state->stopped = ::read(STDIN_FILENO, &byte, 1) <= 0;
      state->begun.set_value();
      while (!state->stopped) state->stopped = ::read(STDIN_FILENO, &byte, 1) <= 0;
    }).detach();
  }
  void wait_to_begin() { state_->begun.get_future().wait(); }
  bool to_stop() const { return state_->stopped; }

 private:
  struct State {
    std::promise<void> begun;
    std::atomic<bool> stopped = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();  // the thread may be reading when the program ends
};
