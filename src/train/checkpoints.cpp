// Checkpoints: the state of a run in files.
//   due, on the trainer's thread > copy of the state, as for a newcomer > written on the pool
// The trainer goes on meanwhile. One is written at a time; when the next one is due before, it begins as soon as this
// one has ended.
#include "checkpoint_content.hpp"
#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "run_impl.hpp"
#include "train/detail/loaded_state.hpp"

namespace cohive::train {

using checkpoint::TensorFile;
using std::filesystem::path;

Task<Result<>> Run::Impl::open_checkpoints() {
  const CheckpointOptions& how = options.checkpoints;
  if (how.directory.empty()) co_return ok();
  CO_TRY(auto opened, co_await runtime.offload_io([directory = how.directory] {
    auto result = checkpoint::Folder::open(directory);
    using Shared = std::shared_ptr<checkpoint::Folder>;
    return result ? Result<Shared>(std::make_shared<checkpoint::Folder>(std::move(*result)))
                  : Result<Shared>(result.error());
  }));
  folder = std::move(opened);
  if (!how.resume) {
    CO_TRY(const auto entries, co_await runtime.offload_io([from = folder] { return from->list(); }));
    if (entries.empty()) co_return ok();
    co_return Error(checkpoint::Errc::not_empty, how.directory);
  }
  CO_TRY(auto newest, co_await runtime.offload_io([from = folder] { return from->newest_whole(); }));
  if (!newest) co_return ok();
  const Origin origin = origin_of(newest->content.metadata);
  if (origin.run_id != options.run_id)
    co_return Error(checkpoint::Errc::other_run, newest->entry.path.string() + ": run " + log::quoted(origin.run_id) +
                                                     ", not " + log::quoted(options.run_id));
  CO_TRY(const auto epoch, co_await restore(newest->entry.path, std::move(newest->content), true));
  log::info("train", "going on from the checkpoint of epoch {}: {}", epoch, newest->entry.path.string());
  co_return ok();
}

// ---- Writing

checkpoint::Metadata Run::Impl::own_strings() const {
  return options.checkpoints.strings ? options.checkpoints.strings() : checkpoint::Metadata();
}

/// Under the mutex. What was not changed is not written again; with local updates, every step changes it.
bool Run::Impl::checkpoint_due() const {
  const CheckpointOptions& how = options.checkpoints;
  if (!options.use_local_updates && local_epoch == checkpoint_epoch) return false;
  return (how.every_epochs > 0 && local_epoch >= checkpoint_epoch + how.every_epochs) ||
         (how.every > 0s && runtime.now() - checkpoint_time >= how.every);
}

void Run::Impl::checkpoint_if_due() {
  if (!folder) return;
  {
    const std::lock_guard lock(mutex);
    if (checkpointing || !checkpoint_due()) return;
    checkpointing = true;
    checkpoint_epoch = local_epoch;
    checkpoint_time = runtime.now();
  }
  runtime.post([weak = weak_from_this(), strings = own_strings()] {
    if (const auto self = weak.lock()) self->tasks.spawn(write_in_background(*self, strings), "a checkpoint");
  });
}

Task<void> Run::Impl::write_in_background(Impl& self, checkpoint::Metadata strings) {
  const auto end = on_exit([&self] {
    const std::lock_guard lock(self.mutex);
    self.checkpointing = false;
  });
  // A round that goes on holds the state for as long as it may last.
  const auto written = co_await self.write_checkpoint(std::move(strings), self.options.averaging_timeout * 2);
  if (written) co_return;
  Failures::of(self.runtime).warn("train", "checkpoint", "not_written", "no checkpoint: " + written.error().message());
}

Task<Result<Run::Impl::StateToSave>> Run::Impl::state_to_save(Duration timeout) {
  std::vector<checkpoint::NamedTensor> of_averager;
  auto state = co_await copy_state(timeout, [this, &of_averager] { return save_exchanges(of_averager); });
  if (!state) co_return Error(checkpoint::Errc::nothing_to_save, "it changes all the time");
  co_return StateToSave{std::move(*state), std::move(of_averager)};
}

/// Names are those of the exchange, without a prefix for the one that the optimizer steps with.
static std::string prefix_of(const Exchange& exchange) {
  return exchange.makes_step() ? "" : exchange.name() + ".";
}

/// Rounds that change what is saved are changes of the model: none goes on.
Task<void> Run::Impl::save_exchanges(std::vector<checkpoint::NamedTensor>& into) {
  for (const auto& scheduled : exchanges)
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

Task<Result<path>> Run::Impl::write_checkpoint(checkpoint::Metadata strings, Duration timeout) {
  if (!folder) co_return Error(cohive::Errc::invalid_argument, "no folder for checkpoints: set checkpoints.directory");
  const auto units = co_await saving.lock();
  bool failed = true;
  const auto count = on_exit([&] {
    const std::lock_guard lock(mutex);
    ++(failed ? counters.checkpoints_failed : counters.checkpoints);
    (failed ? metrics.checkpoints_failed : metrics.checkpoints_ok).increment();
  });
  const TimePoint begin = runtime.now();
  CO_TRY(auto to_save, co_await state_to_save(timeout));
  auto& [state, of_averager] = to_save;
  // With local updates the trainer changes the parameters beside the versions.
  const bool changed =
      options.use_local_updates || !saved || saved->version != state.version || saved->strings != strings;
  if (!changed) {
    failed = false;
    co_return saved->path;
  }
  CO_TRY(auto content,
         to_file(state, std::move(of_averager), options.run_id, options.checkpoints.parameter_names, strings));
  const std::uint64_t epoch = epoch_of(state.metadata).value_or(0);
  path file = folder->path_of(epoch);
  CO_TRY(co_await write_in_pieces(runtime, file, std::move(content)));
  CO_TRY(co_await runtime.offload_io(
      [to = folder, epoch, keep = options.checkpoints.keep] { return to->keep_newest(epoch, keep); }));
  failed = false;
  saved = Saved{file, state.version, std::move(strings)};
  metrics.checkpoint_epoch.set(static_cast<double>(epoch));
  log::info("train", "checkpoint of epoch {} written in {:.2f} s: {}", epoch, to_seconds(runtime.now() - begin),
            file.string());
  co_return file;
}

Task<Result<>> Run::Impl::save_checkpoint(path file) {
  CO_TRY(auto to_save, co_await state_to_save(options.averaging_timeout));
  CO_TRY(auto content, to_file(to_save.state, std::move(to_save.of_averager), options.run_id,
                               options.checkpoints.parameter_names, own_strings()));
  co_return co_await write_in_pieces(runtime, std::move(file), std::move(content));
}

// ---- Reading

Task<Result<std::uint64_t>> Run::Impl::load_checkpoint(path file) {
  CO_TRY(auto content, co_await runtime.offload_io([file] { return checkpoint::read_file(file); }));
  const bool of_this_run = origin_of(content.metadata).run_id == options.run_id;
  co_return co_await restore(std::move(file), std::move(content), of_this_run);
}

Task<Result<std::uint64_t>> Run::Impl::restore(path file, TensorFile content, bool of_this_run) {
  StepReport ignored;
  (void)co_await finish_update(ignored);
  const RoundsSuspended barred(*this);
  co_await abandon_rounds();
  const std::uint64_t epoch = of_this_run ? origin_of(content.metadata).epoch : model.epoch();
  if (epoch > kMostEpochs)
    co_return Error(checkpoint::Errc::does_not_fit, file.string() + ": no run comes to epoch " + std::to_string(epoch));
  auto strings = of_this_run ? strings_of(content.metadata) : checkpoint::Metadata();
  auto of_averager = take_of_averager(content);
  auto values = kept.take_from(content);
  auto tensors = to_tensors(std::move(content), options.checkpoints.parameter_names, replica.gradient_infos().size());
  if (!tensors) co_return tensors.error().with_context(file.string());
  averaging::DownloadedState state;
  state.donor = dht.host().id();
  state.metadata = msgpack::Map{{{"epoch", epoch}}};
  state.tensors = std::move(*tensors);
  if (!of_this_run) values.clear();
  if (of_this_run && values.empty() && kept.elements() > 0)
    log::warn("train", "{} lacks what the exchanges of this run keep: they begin at its model", file.string());
  const auto restored = co_await replace_model(std::move(state), std::move(values), Source::file);
  if (!restored) co_return Error(checkpoint::Errc::does_not_fit, file.string() + ": " + restored.error().detail());
  co_await drop_batches();
  if (of_this_run) co_await restore_exchanges(file, std::move(of_averager));
  proof.reset();
  take_epoch(epoch);
  const std::lock_guard lock(mutex);
  loaded = std::move(strings);
  checkpoint_epoch = epoch;
  checkpoint_time = runtime.now();
  co_return epoch;
}

/// Without it the next averages are coarser, and nothing worse.
Task<void> Run::Impl::restore_exchanges(const path& file, std::vector<checkpoint::NamedTensor> saved) {
  // The one without a prefix is the first, and gets what is left by the others.
  for (std::size_t i = exchanges.size(); i-- > 0 && !saved.empty();) {
    Exchange& exchange = exchanges[i]->exchange();
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
