// Trainers over the caller's memory.
#include "cohive/train/trainer.hpp"

#include <atomic>
#include <cmath>
#include <condition_variable>

#include "caller_model.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/core/on_exit.hpp"
#include "errors.hpp"
#include "swarm.hpp"
#include "trainer_options.hpp"

namespace cohive::c {
namespace {

std::atomic<std::uint64_t> next_trainer{std::uint64_t{1} << 62};  // beside the ids of averagers and trackers

/// A trainer, and how many calls use it: it ends with the swarm, with its handle, or when it is told to.
class TrainerState {
 public:
  /// Makes it, on the caller's thread, which may be called back.
  void open(Swarm& swarm, TrainerOptions options, CallerArrays arrays, const cohive_trainer_calls& calls);
  /// Leaves the run, and returns when the trainer is gone, also where another thread has begun that. Idempotent.
  void close();

  template <class F>
  auto use(F body) {
    {
      const std::lock_guard lock(mutex_);
      if (!trainer_ || closing_) throw ErrorException(Error(cohive::Errc::closed, "the trainer was shut down"));
      ++uses_;
    }
    const auto used = on_exit([this] {
      const std::lock_guard lock(mutex_);
      --uses_;
      changed_.notify_all();
    });
    return body(*trainer_, *model_);
  }

  std::vector<const void*> parameters;  ///< their memory

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool opening_ = true, closing_ = false;  ///< a thread is in open(), or in close()
  int uses_ = 0;
  std::unique_ptr<train::Trainer> trainer_;
  CallerModel* model_ = nullptr;  // the trainer's
};

void TrainerState::open(Swarm& swarm, TrainerOptions options, CallerArrays arrays, const cohive_trainer_calls& calls) {
  const auto opened = on_exit([this] {
    const std::lock_guard lock(mutex_);
    opening_ = false;
    changed_.notify_all();
  });
  CallerModel* made = nullptr;
  const auto make = [&](Runtime& runtime, train::TrainerThread& thread) {
    auto gpu = options.device ? open_gpu(runtime, *options.device) : nullptr;
    auto model = std::make_shared<CallerModel>(runtime, thread, std::move(arrays), calls, options.ways, std::move(gpu));
    model->clip_gradients(options.clip_grad_norm);
    made = model.get();
    return model;
  };
  auto trainer = std::make_unique<train::Trainer>(swarm, options.run, make);
  (void)made->was_loaded();  // from a checkpoint
  if (calls.interrupted) trainer->give_up_when([calls] { return calls.interrupted(calls.context) != 0; });
  const std::lock_guard lock(mutex_);
  trainer_ = std::move(trainer);
  model_ = made;
}

void TrainerState::close() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !opening_ && !closing_; });
  if (!trainer_) return;
  closing_ = true;
  lock.unlock();
  const auto closed = on_exit([this] {
    const std::lock_guard again(mutex_);
    closing_ = false;
    changed_.notify_all();
  });
  trainer_->close();  // which has calls end that wait
  lock.lock();
  changed_.wait(lock, [this] { return uses_ == 0; });
  auto ended = std::move(trainer_);
  lock.unlock();
}

std::string status_of(const train::Trainer& trainer) {
  const auto seen = trainer.progress();
  const auto stats = trainer.stats();
  return msgpack::encode(msgpack::Map{{{"epoch", trainer.epoch()},
                                       {"global_epoch", seen.epoch},
                                       {"samples", seen.samples},
                                       {"own_samples", seen.own_samples},
                                       {"target_batch_size", stats.target_samples},
                                       {"samples_per_second", seen.samples_per_second},
                                       {"peers", std::uint64_t{seen.peers}},
                                       {"clients", std::uint64_t{seen.clients}},
                                       {"eta", seen.eta},
                                       {"grad_rounds", stats.grad_rounds},
                                       {"grad_rounds_failed", stats.grad_rounds_failed},
                                       {"state_rounds", stats.state_rounds},
                                       {"state_rounds_failed", stats.state_rounds_failed},
                                       {"state_downloads", stats.state_downloads},
                                       {"bytes_sent", stats.bytes_sent},
                                       {"bytes_received", stats.bytes_received},
                                       {"seconds_synchronised", stats.seconds_synchronised}}});
}

cohive_step_report told(const train::StepReport& report, bool cleared) {
  return {report.epoch,         report.grad_group,   report.state_group, report.bytes_sent,
          report.epoch_changed, report.loaded_state, report.updated,     cleared};
}

}  // namespace
}  // namespace cohive::c

using namespace cohive::c;
using cohive::train::Trainer;

struct cohive_trainer {
  std::shared_ptr<SwarmState> swarm;
  std::uint64_t id;
  std::shared_ptr<TrainerState> state;
  Origin origin;
};

namespace cohive::c {
namespace {

/// Runs `body(trainer, model)` on the calling thread.
template <class F>
std::int32_t with_trainer(cohive_trainer* handle, F body) noexcept {
  return with_handle(handle, "trainer", [&] {
    handle->state->use([&body](Trainer& self, CallerModel& model) {
      try {
        body(self, model);
      } catch (const ErrorException& exception) {
        if (exception.error() == cohive::Errc::cancelled) model.release_buffers();
        throw;
      }
    });
  });
}

}  // namespace
}  // namespace cohive::c

std::int32_t cohive_trainer_open(cohive_swarm* swarm, const char* options, const cohive_tensor* parameters,
                                 std::size_t count, const cohive_tensor* beside, std::size_t beside_count,
                                 const cohive_trainer_calls* calls, cohive_trainer** trainer) {
  return with_swarm(swarm, [&](SwarmState& state) {
    there(trainer, "trainer") = nullptr;
    if (!there(calls, "calls").step || !calls->load) refuse("calls must have step and load");
    auto arrays = read_arrays(parameters, count, beside, beside_count);
    auto wanted = read_trainer_options(options, count, beside_count);
    auto handle =
        std::make_unique<cohive_trainer>(swarm->state, next_trainer++, std::make_shared<TrainerState>(), Origin());
    for (std::size_t i = 0; i < count; ++i) handle->state->parameters.push_back(parameters[i].data);
    auto& used = state.use(handle->id, [held = handle->state] { held->close(); });
    try {
      handle->state->open(used, std::move(wanted), std::move(arrays), *calls);
    } catch (...) {
      state.used(handle->id);
      throw;
    }
    *trainer = handle.release();
  });
}

std::int32_t cohive_trainer_describe(cohive_trainer* trainer, const std::uint8_t* metadata, std::size_t size,
                                     const cohive_tensor* state, const char* const* names, std::size_t count,
                                     const char* steps, float* const* statistics) {
  return with_trainer(trainer, [&](Trainer&, CallerModel& model) {
    const cohive::ByteView text(&there(metadata, "metadata"), size);
    model.describe(read_layout(trainer->state->parameters, text, state, names, count, steps, statistics));
  });
}

std::int32_t cohive_trainer_step(cohive_trainer* trainer, const float* const* gradients, std::int64_t samples,
                                 double scale, cohive_step_report* report) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel& model) {
    const bool counts = gradients != nullptr;
    if (samples < (counts ? 1 : 0)) refuse("a batch has at least one sample");
    if (!(scale > 0) || !std::isfinite(scale)) refuse("the scale of a loss must be above 0 and finite");
    if (self.options().auxiliary && counts) refuse("an auxiliary peer has no batches");
    bool reached = false;
    const auto take = [&, loads = model.loads()]() -> std::int64_t {
      reached = true;
      if (!counts) return 0;
      if (model.loads() != loads) {  // an interrupted call has gone on: other parameters than the gradients are of
        model.drop_batch(gradients);
        return 0;
      }
      return model.take_batch(gradients, static_cast<double>(samples), scale) ? samples : 0;
    };
    cohive::train::StepReport done;
    try {
      done = self.step(take, [&] {
        model.take_sums_of_caller();
        model.return_free_memory();
      });
    } catch (const cohive::ErrorException&) {  // of what an interrupted call has begun, which this one waits for first
      if (counts && !reached) model.drop_batch(gradients);
      throw;
    }
    done.loaded_state |= model.was_loaded();
    if (done.loaded_state) model.forget_batches();
    const bool cleared = model.clear_buffers();
    if (report) *report = told(done, cleared);
  });
}

std::int32_t cohive_gpu_count() {
  return gpu_count();
}

std::int32_t cohive_trainer_stream(cohive_trainer* trainer, void* stream) {
  return with_trainer(trainer, [&](Trainer&, CallerModel& model) { model.note_stream(stream); });
}

std::int32_t cohive_trainer_forget(cohive_trainer* trainer) {
  return with_trainer(trainer, [](Trainer& self, CallerModel& model) {
    self.forget([&model] { model.forget_batches(); });
    (void)model.clear_buffers();
  });
}

std::int32_t cohive_trainer_settle(cohive_trainer* trainer) {
  return with_trainer(trainer, [](Trainer& self, CallerModel&) { self.settle(); });
}

std::int32_t cohive_trainer_changes(cohive_trainer* trainer, std::int32_t again) {
  return with_trainer(trainer, [&](Trainer&, CallerModel& model) { model.changes(again != 0); });
}

std::int32_t cohive_trainer_load(cohive_trainer* trainer, std::int32_t* loaded) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel& model) {
    bool newer = self.load_state_from_peers();
    newer |= model.was_loaded();  // also by what an interrupted call has begun
    if (newer) model.forget_batches();
    (void)model.clear_buffers();  // before the next batch adds to them
    if (loaded) *loaded = newer;
  });
}

std::int32_t cohive_trainer_average(cohive_trainer* trainer, std::uint64_t* group) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel& model) {
    const auto members = self.average_parameters();
    (void)model.clear_buffers();
    if (group) *group = members;
  });
}

std::int32_t cohive_trainer_finish(cohive_trainer* trainer, std::uint64_t* group) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel&) {
    const auto members = self.finish();
    if (group) *group = members;
  });
}

std::int32_t cohive_trainer_restore(cohive_trainer* trainer, std::uint64_t epoch) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel& model) {
    if (epoch > cohive::train::kMostEpochs) refuse("no run comes to that epoch");
    model.changes(false);  // what newcomers have begun to read since the caller has begun to write
    self.restore(epoch, [] {});
    model.forget_batches();
    (void)model.clear_buffers();
  });
}

std::int32_t cohive_trainer_save(cohive_trainer* trainer, const char* path) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel&) {
    if (const auto saved = self.save_checkpoint(&there(path, "path")); !saved)
      throw cohive::ErrorException(saved.error());
  });
}

std::int32_t cohive_trainer_resume(cohive_trainer* trainer, const char* path, std::uint64_t* epoch) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel& model) {
    const auto loaded = self.load_checkpoint(&there(path, "path"));
    if (!loaded) throw cohive::ErrorException(loaded.error());
    (void)model.was_loaded();  // which the caller knows
    model.forget_batches();
    (void)model.clear_buffers();
    if (epoch) *epoch = *loaded;
  });
}

std::int32_t cohive_trainer_loss(cohive_trainer* trainer, double loss) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel&) { self.report_loss(loss); });
}

std::int32_t cohive_trainer_status(cohive_trainer* trainer, cohive_bytes* status) {
  return with_trainer(trainer, [&](Trainer& self, CallerModel&) { give(status, status_of(self)); });
}

std::int32_t cohive_trainer_close(cohive_trainer* trainer) {
  return with_handle(trainer, "trainer", [&] {
    trainer->state->close();
    trainer->swarm->used(trainer->id);
  });
}

void cohive_trainer_free(cohive_trainer* trainer) {
  if (!trainer || trainer->origin.elsewhere()) return;
  (void)cohive_trainer_close(trainer);
  delete trainer;
}
