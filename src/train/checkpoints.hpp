// Checkpoints: the state of a run in files.
//   due, on the trainer's thread > copy of the state, as for a newcomer > written on the pool
// The trainer goes on meanwhile. One is written at a time; when the next one is due before, it begins as soon as this
// one has ended.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "catching_up.hpp"
#include "cohive/checkpoint/folder.hpp"

namespace cohive::train {

class Checkpoints {
 public:
  Checkpoints(RunContext& run, RunRounds& rounds, Epochs& epochs, CatchingUp& catching_up);

  // ---- Any thread
  /// Tells whether one is to be written now, and none is. The next call of write_in_background() writes it, or
  /// end_in_background() gives it up: the next attempt is made when the next one is due.
  bool begin_due();
  void end_in_background();
  /// Returns the strings of the application that belong to the state as it is.
  checkpoint::Metadata own_strings() const;
  /// Returns those of the checkpoint that this run goes on from.
  checkpoint::Metadata loaded_strings() const;

  // ---- Loop thread; for what they return see cohive::train::Run
  Task<Result<>> open();
  static Task<void> write_in_background(Checkpoints& self, checkpoint::Metadata strings);
  /// \param patience  for a copy of the state
  Task<Result<std::filesystem::path>> write(checkpoint::Metadata strings, Duration patience);
  Task<Result<>> save(std::filesystem::path path);
  Task<Result<std::uint64_t>> load(std::filesystem::path path);
  /// Waits for one that is being written.
  Task<void> drain(Deadline limit);

 private:
  struct StateToSave {
    averaging::SharedState state;
    std::vector<checkpoint::NamedTensor> of_averager;
  };
  /// The last checkpoint in the folder.
  struct Saved {
    std::filesystem::path path;
    std::uint64_t version;  // of the model
    checkpoint::Metadata strings;
  };
  bool is_due(std::uint64_t epoch) const;
  Task<Result<StateToSave>> state_to_save(Duration patience);
  Task<void> save_exchanges(std::vector<checkpoint::NamedTensor>& into);
  Task<void> restore_exchanges(const std::filesystem::path& file, std::vector<checkpoint::NamedTensor> saved);
  Task<Result<std::uint64_t>> restore(std::filesystem::path path, checkpoint::TensorFile content, bool of_this_run);

  RunContext& run_;
  RunRounds& rounds_;
  Epochs& epochs_;
  CatchingUp& catching_up_;
  std::shared_ptr<checkpoint::Folder> folder_;
  Mutex saving_;
  std::optional<Saved> saved_;
  mutable std::mutex mutex_;      // of what follows
  bool in_background_ = false;    // one is being written there
  std::uint64_t last_epoch_ = 0;  // when the last one was begun, or loaded
  TimePoint last_time_{};         // the same
  checkpoint::Metadata loaded_;
};

}  // namespace cohive::train
