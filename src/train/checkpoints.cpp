#include "checkpoints.hpp"

#include <algorithm>

#include "checkpoint_content.hpp"
#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "train/detail/loaded_state.hpp"

namespace cohive::train {

using checkpoint::TensorFile;
using std::filesystem::path;

Checkpoints::Checkpoints(RunContext& run, RunRounds& rounds, Epochs& epochs, CatchingUp& catching_up)
    : run_(run),
      rounds_(rounds),
      epochs_(epochs),
      catching_up_(catching_up),
      saving_(run.runtime, "a checkpoint"),
      last_time_(run.runtime.now()) {}

Task<void> Checkpoints::drain(Deadline limit) {
  (void)co_await saving_.lock(limit);
}

Task<Result<>> Checkpoints::open() {
  const CheckpointOptions& how = run_.options.checkpoints;
  if (how.directory.empty()) co_return ok();
  CO_TRY(auto opened, co_await run_.runtime.offload_io([directory = how.directory] {
    auto result = checkpoint::Folder::open(directory);
    using Shared = std::shared_ptr<checkpoint::Folder>;
    return result ? Result<Shared>(std::make_shared<checkpoint::Folder>(std::move(*result)))
                  : Result<Shared>(result.error());
  }));
  folder_ = std::move(opened);
  if (!how.resume) {
    CO_TRY(const auto entries, co_await run_.runtime.offload_io([from = folder_] { return from->list(); }));
    if (entries.empty()) co_return ok();
    co_return Error(checkpoint::Errc::not_empty, how.directory);
  }
  CO_TRY(auto newest, co_await run_.runtime.offload_io([from = folder_] { return from->newest_whole(); }));
  if (!newest) co_return ok();
  const Origin origin = origin_of(newest->content.metadata);
  if (origin.run_id != run_.options.run_id)
    co_return Error(checkpoint::Errc::other_run, newest->entry.path.string() + ": run " + log::quoted(origin.run_id) +
                                                     ", not " + log::quoted(run_.options.run_id));
  CO_TRY(const auto epoch, co_await restore(newest->entry.path, std::move(newest->content), true));
  log::info("train", "going on from the checkpoint of epoch {}: {}", epoch, newest->entry.path.string());
  co_return ok();
}

// ---- Writing

checkpoint::Metadata Checkpoints::own_strings() const {
  return run_.options.checkpoints.strings ? run_.options.checkpoints.strings() : checkpoint::Metadata();
}

checkpoint::Metadata Checkpoints::loaded_strings() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

/// Under the mutex. What was not changed is not written again; with local updates, every step changes it.
bool Checkpoints::is_due(std::uint64_t epoch) const {
  const CheckpointOptions& how = run_.options.checkpoints;
  if (!run_.options.use_local_updates && epoch == last_epoch_) return false;
  return (how.every_epochs > 0 && epoch >= last_epoch_ + how.every_epochs) ||
         (how.every > 0s && run_.runtime.now() - last_time_ >= how.every);
}

bool Checkpoints::begin_due() {
  if (!folder_) return false;
  const std::uint64_t epoch = run_.counts.epoch();
  const std::lock_guard lock(mutex_);
  // The caller may have entered an earlier epoch (Run::restore), from which epochs without a checkpoint count.
  last_epoch_ = std::min(last_epoch_, epoch);
  if (in_background_ || !is_due(epoch)) return false;
  in_background_ = true;
  last_epoch_ = epoch;
  last_time_ = run_.runtime.now();
  return true;
}

void Checkpoints::end_in_background() {
  const std::lock_guard lock(mutex_);
  in_background_ = false;
}

Task<void> Checkpoints::write_in_background(Checkpoints& self, checkpoint::Metadata strings) {
  const auto end = on_exit([&self] { self.end_in_background(); });
  // A round that goes on holds the state for as long as it may last, which may be without end.
  const Duration patience = 2 * std::min<Duration>(self.run_.options.averaging_timeout, Duration::max() / 2);
  const auto written = co_await self.write(std::move(strings), patience);
  if (written) co_return;
  Failures::of(self.run_.runtime)
      .warn("train", "checkpoint", "not_written", "no checkpoint: " + written.error().message());
}

Task<Result<Checkpoints::StateToSave>> Checkpoints::state_to_save(Duration patience) {
  std::vector<checkpoint::NamedTensor> of_averager;
  auto state = co_await run_.copy_state(patience, [this, &of_averager] { return save_exchanges(of_averager); });
  if (!state) co_return Error(checkpoint::Errc::nothing_to_save, "it changes all the time");
  co_return StateToSave{std::move(*state), std::move(of_averager)};
}

/// Names are those of the exchange, without a prefix for the one that the optimizer steps with.
static std::string prefix_of(const Exchange& exchange) {
  return exchange.makes_step() ? "" : exchange.name() + ".";
}

/// Rounds that change what is saved are changes of the model, and none goes on; of those whose trainer goes on
/// meanwhile it is what they began with.
Task<void> Checkpoints::save_exchanges(std::vector<checkpoint::NamedTensor>& into) {
  for (const auto& scheduled : run_.exchanges)
    for (auto& saved : co_await scheduled->exchange().save())
      into.push_back({prefix_of(scheduled->exchange()) + saved.name, std::move(saved.tensor)});
}

/// Dropped, it leaves nothing behind, and the disk has one piece at most still to write.
static Task<Result<>> write_in_pieces(Runtime& runtime, path file, TensorFile content) {
  auto shared = std::make_shared<const TensorFile>(std::move(content));
  CO_TRY(auto created, co_await runtime.offload_io([file = std::move(file), shared = std::move(shared)] {
    return checkpoint::FileWriter::create(file, shared);
  }));
  auto writer = std::make_shared<checkpoint::FileWriter>(std::move(created));
  for (bool more = true; more;) {
    CO_TRY(more, co_await runtime.offload_io([writer] { return writer->write_piece(); }));
  }
  // The job drops the content, too, whose memory takes long to give back.
  co_return co_await runtime.offload_io([writer = std::move(writer)]() mutable {
    const auto last = std::move(writer);
    return last->finish();
  });
}

Task<Result<path>> Checkpoints::write(checkpoint::Metadata strings, Duration patience) {
  if (!folder_)
    co_return Error(cohive::Errc::invalid_argument, "no folder_ for checkpoints: set checkpoints.directory");
  const auto units = co_await saving_.lock();
  bool failed = true;
  const auto count = on_exit([&] {
    run_.counts.note([failed](TrainingStats& stats) { ++(failed ? stats.checkpoints_failed : stats.checkpoints); });
    (failed ? run_.metrics.checkpoints_failed : run_.metrics.checkpoints_ok).increment();
  });
  const TimePoint begin = run_.runtime.now();
  CO_TRY(auto to_save, co_await state_to_save(patience));
  auto& [state, of_averager] = to_save;
  // With local updates the trainer changes the parameters beside the versions.
  const bool changed =
      run_.options.use_local_updates || !saved_ || saved_->version != state.version || saved_->strings != strings;
  if (!changed) {
    failed = false;
    co_return saved_->path;
  }
  CO_TRY(auto content, to_file(state, std::move(of_averager), run_.options.run_id,
                               run_.options.checkpoints.parameter_names, strings));
  const std::uint64_t epoch = epoch_of(state.metadata).value_or(0);
  path file = folder_->path_of(epoch);
  CO_TRY(co_await write_in_pieces(run_.runtime, file, std::move(content)));
  CO_TRY(co_await run_.runtime.offload_io(
      [to = folder_, epoch, keep = run_.options.checkpoints.keep] { return to->keep_newest(epoch, keep); }));
  failed = false;
  saved_ = Saved{file, state.version, std::move(strings)};
  run_.metrics.checkpoint_epoch.set(static_cast<double>(epoch));
  log::info("train", "checkpoint of epoch {} written in {:.2f} s: {}", epoch, to_seconds(run_.runtime.now() - begin),
            file.string());
  co_return file;
}

Task<Result<>> Checkpoints::save(path file) {
  CO_TRY(auto to_save, co_await state_to_save(run_.options.averaging_timeout));
  CO_TRY(auto content, to_file(to_save.state, std::move(to_save.of_averager), run_.options.run_id,
                               run_.options.checkpoints.parameter_names, own_strings()));
  co_return co_await write_in_pieces(run_.runtime, std::move(file), std::move(content));
}

// ---- Reading

Task<Result<std::uint64_t>> Checkpoints::load(path file) {
  CO_TRY(auto content, co_await run_.runtime.offload_io([file] { return checkpoint::read_file(file); }));
  const bool of_this_run = origin_of(content.metadata).run_id == run_.options.run_id;
  co_return co_await restore(std::move(file), std::move(content), of_this_run);
}

Task<Result<std::uint64_t>> Checkpoints::restore(path file, TensorFile content, bool of_this_run) {
  if (const auto known = check_version(content.metadata); !known) co_return known.error().with_context(file.string());
  StepReport ignored;
  (void)co_await epochs_.settle(ignored);
  const RunRounds::Suspended suspended(rounds_);
  const std::uint64_t epoch = of_this_run ? origin_of(content.metadata).epoch : run_.model.epoch();
  if (epoch > kMostEpochs)
    co_return Error(checkpoint::Errc::does_not_fit, file.string() + ": no run comes to epoch " + std::to_string(epoch));
  auto strings = of_this_run ? strings_of(content.metadata) : checkpoint::Metadata();
  auto of_averager = take_of_averager(content);
  auto values = run_.kept.take_from(content);
  auto found =
      to_tensors(std::move(content), run_.options.checkpoints.parameter_names, run_.replica.gradient_infos().size());
  if (!found) co_return found.error().with_context(file.string());
  co_await catching_up_.abandon_rounds();
  averaging::DownloadedState state;
  state.donor = run_.dht.host().id();
  // Replicas tell by the names whether the statistics are theirs.
  state.metadata = msgpack::Map{{{"epoch", epoch}, {kStatisticsKey, std::move(found->statistics)}}};
  state.tensors = std::move(found->tensors);
  if (!of_this_run) values.clear();
  if (of_this_run && values.empty() && run_.kept.elements() > 0)
    log::warn("train", "{} lacks what the exchanges of this run keep: they begin at its model", file.string());
  const auto restored =
      co_await catching_up_.replace_model(std::move(state), std::move(values), CatchingUp::Source::file);
  if (!restored) co_return Error(checkpoint::Errc::does_not_fit, file.string() + ": " + restored.error().detail());
  co_await epochs_.drop_batches();
  if (of_this_run) co_await restore_exchanges(file, std::move(of_averager));
  catching_up_.forget_proof();
  epochs_.take(epoch);
  run_.tracker.report(epoch, 0);
  const std::lock_guard lock(mutex_);
  loaded_ = std::move(strings);
  last_epoch_ = epoch;
  last_time_ = run_.runtime.now();
  co_return epoch;
}

/// Without it the next averages are coarser, and nothing worse.
Task<void> Checkpoints::restore_exchanges(const path& file, std::vector<checkpoint::NamedTensor> saved) {
  // The one without a prefix is the first, and gets what is left by the others.
  for (std::size_t i = run_.exchanges.size(); i-- > 0 && !saved.empty();) {
    Exchange& exchange = run_.exchanges[i]->exchange();
    const std::string prefix = prefix_of(exchange);
    std::vector<checkpoint::NamedTensor> own;
    std::erase_if(saved, [&](checkpoint::NamedTensor& one) {
      if (!one.name.starts_with(prefix)) return false;
      own.push_back({one.name.substr(prefix.size()), std::move(one.tensor)});
      return true;
    });
    const auto restored = own.empty() ? Result<>(ok()) : co_await exchange.restore(std::move(own));
    if (!restored)
      log::warn("train", "going on without what the averaging of {} saved in {}: {}", exchange.name(), file.string(),
                restored.error().detail());
  }
}

}  // namespace cohive::train
