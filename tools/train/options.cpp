#include "train/options.hpp"

#include <algorithm>

#include "cohive/torch/schedules.hpp"
#include "cohive/train/power_sgd_averager.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"
#include "common/settings.hpp"

namespace cohive::tools {
namespace {

std::optional<codec::Codec> codec_from_text(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const auto& info : codec::all_codecs()) {
    std::string name(info.name);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (name == text && !info.needs_agreement) return info.codec;
  }
  return std::nullopt;
}

std::string codec_names() {
  std::string names;
  for (const auto& info : codec::all_codecs()) {
    if (info.needs_agreement) continue;
    std::string name(info.name);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

/// \param compression  a codec::Compression, or an optional one
void add_compression(CLI::App& app, const std::string& flag, auto& compression, const std::string& of) {
  app.add_option_function<std::string>(
      flag,
      [flag, &compression](const std::string& text) {
        const auto chosen = compression_from_text(text);
        if (!chosen)
          throw CLI::ValidationError(
              flag, "one of " + codec_names() + ", or N:LESS:MORE with two of them, not '" + text + "'");
        compression = *chosen;
      },
      "codec of " + of + ": " + codec_names() + ", or N:LESS:MORE by the number of values (default none)");
}

void add_seconds(CLI::App& app, const std::string& flag, Duration& duration, const std::string& help, double least,
                 double most) {
  in_seconds(app.add_option_function<double>(
                 flag, [&duration](double seconds) { duration = from_seconds(seconds); }, help),
             least, most);
}
void add_seconds(CLI::App& app, const std::string& flag, std::optional<Duration>& duration, const std::string& help,
                 double least, double most) {
  in_seconds(app.add_option_function<double>(
                 flag, [&duration](double seconds) { duration = from_seconds(seconds); }, help),
             least, most);
}

void add_swarm_options(CLI::App& app, TrainOptions& o) {
  const OptionGroup group(app, "Swarm");
  app.add_option("--initial-peers", o.swarm.initial_peers,
                 "multiaddrs of the swarm (or $INITIAL_PEERS); none: start a new one");
  app.add_option("--host-maddrs", o.swarm.host_maddrs, "addresses to listen on (default /ip4/0.0.0.0/tcp/0)");
  app.add_option("--announce-maddrs", o.swarm.announce_maddrs, "addresses to tell others instead");
  app.add_option("--identity-path", o.swarm.identity_path, "key file; made when missing");
  add_member_options(app, o.swarm.secret_file, o.swarm.members_file);
  auto* address =
      takes_endpoint(app.add_option("--metrics-address", o.swarm.metrics_address,
                                    "host:port for a page, /status, /metrics, /healthz, /readyz and /debug"));
  app.add_option("--metrics-token-file", o.swarm.metrics_token_file,
                 "ask for the token in this file before showing anything there")
      ->needs(address);
  app.add_option("--trace", o.swarm.trace_file,
                 "write what this peer does when to this file, for ui.perfetto.dev (256 MiB at most)");
  app.add_flag("--client,--client-mode", o.swarm.client_mode, "do not listen: for peers that cannot be reached");
  app.add_flag("--use-relay,!--no-relay", o.swarm.use_relay,
               "be reached through relays when peers cannot dial this one (the default)");
  app.add_option("--trusted-relays", o.swarm.trusted_relays, "multiaddrs of relays to use before those that are met")
      ->delimiter(',');
  add_port_mapping_option(app, o.swarm.nat_port_map);
  app.add_option("--force-reachability", o.swarm.force_reachability,
                 "public or private, where it is known; else it is found out")
      ->check(CLI::IsMember({"public", "private"}));
  add_seconds(app, "--bootstrap-timeout", o.swarm.bootstrap_timeout, "seconds of one attempt to join (default 15)", 1,
              600);
  const auto wait = [&o](double seconds) {
    o.swarm.wait_for_swarm = seconds < 0 ? Duration::max() : from_seconds(seconds);
  };
  in_seconds(app.add_option_function<double>(
                 "--wait-for-swarm", wait,
                 "seconds to go on trying when no initial peer answers; -1: until one does (default 300)"),
             -1, 1e9);
}

void add_run_options(CLI::App& app, TrainOptions& o) {
  const OptionGroup group(app, "Run");
  auto& run = o.optimizer;
  names_run(
      app.add_option("--run-id", run.run_id, "name of the run; all its trainers use the same (default cohive_run)"));
  app.add_option("--target-batch-size", o.target_batch_size,
                 "samples per epoch of all peers together (default 1024; fitted with --local-steps)")
      ->transform(whole(1, kMostEpochs));
  app.add_option("--batch-size", o.batch, "samples per local step (default 16)")->transform(whole(1, 65536));
  add_seconds(app, "--matchmaking-time", run.matchmaking_time, "seconds to gather a group (default 5)", 0.5, 600);
  add_seconds(app, "--averaging-timeout", run.averaging_timeout, "seconds for one round (default 30)", 1, 3600);
  add_seconds(app, "--allreduce-timeout", run.allreduce_timeout,
              "seconds for one all-reduce (default: averaging-timeout)", 1, 3600);
  add_seconds(app, "--next-chunk-timeout", run.next_chunk_timeout,
              "seconds between two parts of a peer (default: matchmaking-time)", 0.5, 600);
  add_seconds(app, "--load-state-timeout", run.load_state_timeout, "seconds for a download of the state (default 600)",
              1, 86400);
  add_seconds(app, "--shutdown-timeout", run.shutdown_timeout, "seconds for leaving (default 5)", 0, 600);
  app.add_option("--average-state-every", run.average_state_every,
                 "epochs between rounds that average the parameters (default 1)")
      ->transform(whole(1, 1000000));
  app.add_option("--full-state-every", run.full_state_every,
                 "parameters travel as 8-bit differences from their last average where all of a group ask for it, and "
                 "whole in one of so many rounds; 0: always whole (default)")
      ->transform(whole(0, 1000000));
  app.add_option("--target-group-size", run.target_group_size,
                 "larger runs average in random groups of about so many; 0: all in one (default 128)")
      ->transform(whole(0, 1024));
  app.add_flag("--delay-state-averaging,!--no-delay-state-averaging", run.delay_state_averaging,
               "average parameters in the background (default on)");
  app.add_flag("--delay-optimizer-step", run.delay_optimizer_step,
               "step in the background: where the model is, or with --offload-optimizer in host memory");
  app.add_flag("--delay-grad-averaging", run.delay_grad_averaging,
               "average gradients in the background; needs --delay-optimizer-step");
  app.add_flag("--offload-optimizer", run.offload_optimizer, "statistics and the step in host memory");
  app.add_flag("--offload-gradients-early", run.offload_gradients_early,
               "gradients leave a GPU during backward; needs --offload-optimizer");
  app.add_flag("--reuse-grad-buffers", run.reuse_grad_buffers, "accumulate in the model's own gradients");
  app.add_flag("--use-local-updates", run.use_local_updates, "step with every batch, and average parameters only");
  auto* local = app.add_flag("--local-steps", o.local_steps,
                             "step with every batch, and once an epoch by an outer optimizer, as DiLoCo does");
  app.add_flag_function(
         "--fit-my-link,!--no-fit-my-link", [&o](std::int64_t count) { o.fit_my_link = count > 0; },
         "agree with the other trainers on the length of rounds, and on block4 for them, so that links carry them "
         "behind the training (the default with --local-steps, as far as no other option says it)")
      ->needs(local);
  app.add_option("--outer-lr", o.outer.lr, "its learning rate (default 0.7)")->transform(real(1e-6, 100))->needs(local);
  app.add_option("--outer-momentum", o.outer_momentum,
                 "its momentum (default 0.9, with sparse2 0); 0.5 or less where an epoch is 64 local steps or fewer")
      ->transform(real(0, 0.999999))
      ->needs(local);
  app.add_flag("--open-diloco", o.outer.open_diloco,
               "average with trainers of OpenDiLoCo, by their rules: nothing is fitted, give --target-batch-size")
      ->needs(local);
  app.add_option(
         "--fragments", o.outer.fragments,
         "parts of the model that are averaged in turn, one in each epoch (default 1); all trainers give the same")
      ->transform(whole(1, 64))
      ->needs(local);
  app.add_flag("--auxiliary", run.auxiliary, "help averaging without training");
  app.add_flag_callback(
      "--no-share-loss", [&run] { run.share_loss = false; }, "do not tell monitors of the run this trainer's loss");
  app.add_flag("--verbose", run.verbose, "log what the run does");
  app.add_option("--performance-ema-alpha", run.performance_ema_alpha,
                 "how fast the measured speed follows (default 0.1)")
      ->transform(real(1e-6, 1));
  add_seconds(app, "--min-refresh-period", run.tracker_options.min_refresh_period,
              "seconds between two looks at the run's progress, at least (default 0.5)", 0.05, 600);
  add_seconds(app, "--max-refresh-period", run.tracker_options.max_refresh_period, "and at most (default 10)", 0.05,
              600);
}

void add_compression_options(CLI::App& app, TrainOptions& o) {
  const OptionGroup group(app, "Averaging");
  auto& run = o.optimizer;
  add_compression(app, "--grad-compression", o.grad_compression, "gradients");
  add_compression(app, "--state-averaging-compression", run.state_averaging_compression, "averaged parameters");
  add_compression(app, "--load-state-compression", run.load_state_compression, "the state that newcomers download");
  app.add_flag_callback(
      "--fp16", [&o] { o.grad_compression = codec::Codec::float16; }, "the same as --grad-compression float16");
  app.add_option("--agreed-compression,--extension", o.agreed_compression,
                 "send gradients so, with error feedback, where all of a group ask for it")
      ->check(CLI::IsMember({"block4", "top_k", "sparse2"}));
  app.add_option("--density", o.density,
                 "the share of values that top_k sends (default 0.01), or sparse2 (default 1/64)")
      ->transform(real(1e-6, 1));
  app.add_option("--averager-rank", o.averager_rank,
                 "average gradients by PowerSGD, as factors of this rank; all trainers of the run need the same")
      ->transform(whole(1, 4096))
      ->excludes("--agreed-compression");
  app.add_option("--min-compression-ratio", o.min_compression_ratio,
                 "gradients of which the factors save less are averaged as they are (default 0.5)")
      ->transform(real(0, 1));
  app.add_option("--aggregation", o.aggregation,
                 "how this peer averages its parts (default mean, with sparse2 mean-of-senders)")
      ->check(CLI::IsMember({"mean", "mean-of-senders", "trimmed-mean", "centered-clip", "clipped-mean"}));
  app.add_option("--trim", o.trim,
                 "the share left out at each end by trimmed-mean, and for parameters by centered-clip (default 0.2)")
      ->transform(real(0.001, 0.499));
  app.add_option("--clip-radius", o.clip_radius, "of centered-clip, for gradients (default 1)")
      ->transform(real(1e-12, 1e12));
  app.add_option("--clip-iterations", o.clip_iterations, "of centered-clip (default 5)")->transform(whole(1, 100));
  app.add_option("--clip-factor", o.clip_factor,
                 "clipped-mean and mean-of-senders: how many times the median norm of a part the norm of one may be "
                 "(default 3, and of mean-of-senders no bound)")
      ->transform(real(1, 1e6));
  app.add_option(
         "--verified-share", run.verified_share,
         "the share of averages of other trainers that this one makes again, to find liars; all trainers of the "
         "run need one above 0, and the same aggregation (default 0: none)")
      ->transform(real(0, 1));
  app.add_option_function<std::string>(
         "--bandwidth",
         [&run](const std::string& text) {
           const auto rate = read_rate(text);
           if (text != "measured" && !rate)
             throw CLI::ValidationError("--bandwidth",
                                        "'measured', or bytes per second as 500K or 10M, not " + shown(text));
           run.bandwidth = rate ? averaging::Bandwidth(*rate) : averaging::Bandwidth::measured();
         },
         "of the link, by which trainers divide the averaging: 'measured', or bytes per second as 500K or 10M")
      ->type_name("RATE");
}

/// "600" is seconds, "10m" minutes, "5epochs" epochs.
bool read_period(std::string_view text, CheckpointOptions& o) {
  static constexpr std::string_view kEpochs = "epochs";
  constexpr double kMost = 1e9;
  const bool epochs = text.ends_with(kEpochs);
  if (epochs) text.remove_suffix(kEpochs.size());
  const auto whole_epochs = epochs ? read_whole(text) : 0;
  const auto seconds = epochs ? 0 : read_seconds(text);
  if (!whole_epochs || *whole_epochs > kMostEpochs || !seconds || *seconds > kMost) return false;
  if (*whole_epochs == 0 && !(*seconds > 0)) return false;
  o.every = from_seconds(*seconds);
  o.every_epochs = *whole_epochs;
  return true;
}

void add_checkpoint_options(CLI::App& app, TrainOptions& o) {
  const OptionGroup group(app, "Checkpoints");
  auto& checkpoints = o.optimizer.checkpoints;
  auto* folder = app.add_option("--checkpoint-dir", checkpoints.directory,
                                "folder for checkpoints, which belongs to this process; made when missing");
  app.add_option_function<std::string>(
         "--checkpoint-every",
         [&checkpoints](const std::string& text) {
           if (!read_period(text, checkpoints))
             throw CLI::ValidationError("--checkpoint-every",
                                        "a time, as 600 or 10m, or epochs, as 5epochs, not " + shown(text));
         },
         "a time, as 600 or 10m, or epochs, as 5epochs, between two checkpoints (default 600)")
      ->type_name("PERIOD")
      ->needs(folder);
  app.add_option("--keep-checkpoints", checkpoints.keep, "that stay in the folder (default 3)")
      ->transform(whole(1, 1000000))
      ->needs(folder);
  app.add_flag("--resume", checkpoints.resume,
               "go on from the newest whole checkpoint in the folder, if there is one; with --checkpoint-dir");
  app.add_option("--load-checkpoint", o.load_checkpoint,
                 "begin with this file, unless --resume has found a checkpoint");
}

void add_optimizer_options(CLI::App& app, TrainOptions& o) {
  const OptionGroup group(app, "Optimizer");
  app.add_option(
         "--optimizer", o.algorithm,
         "adamw, adam, sgd, lamb, or muon, which steps embeddings, the head and vectors by AdamW (default adamw)")
      ->check(CLI::IsMember({"adamw", "adam", "sgd", "lamb", "muon"}));
  app.add_option("--learning-rate", o.given_learning_rate, "of the optimizer (default 0.001; 0.02 of muon)")
      ->transform(real(1e-30, 1e6));
  app.add_option("--adamw-learning-rate", o.adamw_learning_rate, "of muon: of what it steps by AdamW (default 0.001)")
      ->transform(real(1e-30, 1e6));
  app.add_option("--momentum", o.given_momentum, "of sgd (default 0.9) and muon (default 0.95)")->transform(real(0, 1));
  app.add_option("--clip-grad-norm", o.clip_grad_norm,
                 "bound of the norm of the averaged gradients, or with local steps of those of each batch; 0: none")
      ->transform(real(0, 1e30));
  app.add_option("--lr-schedule", o.lr_schedule,
                 "constant, exponential, linear, cosine or one-cycle, by epochs (default constant)")
      ->check(CLI::IsMember({"constant", "exponential", "linear", "cosine", "one-cycle"}));
  app.add_option("--warmup-epochs", o.warmup_epochs,
                 "epochs in which the learning rate rises from 0 in a straight line")
      ->transform(whole(0, kMostEpochs));
  app.add_option("--schedule-epochs", o.schedule_epochs,
                 "that linear, cosine and one-cycle take, warm-up included (default --max-epochs)")
      ->transform(whole(2, kMostEpochs));
  app.add_option("--lr-gamma", o.lr_gamma, "factor of each epoch, of exponential (default 0.999)")
      ->transform(real(1e-6, 1));
  app.add_option("--lr-least", o.lr_least, "factor at the end of linear and cosine (default 0)")->transform(real(0, 1));
  app.add_option("--average-opt-statistics", o.extras.average_opt_statistics,
                 "statistics of the optimizer to average with the parameters, such as exp_avg,exp_avg_sq; all trainers "
                 "need the same")
      ->delimiter(',');
  app.add_option_function<std::string>(
         "--python-scheduler", [&o](const std::string& text) { o.extras.python.scheduler = text == "true"; },
         "whether Python trainers of the run have a scheduler: they take over no state of another kind (default: as "
         "this one)")
      ->check(CLI::IsMember({"true", "false"}));
  app.add_option("--python-torch", o.extras.python.torch,
                 "release of PyTorch that Python trainers of the run have, as 2.6 (default: that of this LibTorch)");
}

void add_course_options(CLI::App& app, TrainOptions& o) {
  const OptionGroup group(app, "Course and output");
  in_seconds(app.add_option("--seconds", o.seconds, "stop after this long"), 0, 1e9);
  app.add_option("--until", o.until, "stop at this Unix time, together with the others")->transform(real(0, 1e11));
  app.add_option("--max-epochs", o.max_epochs, "stop after this many epochs; 0: never (default)")
      ->transform(whole(0, kMostEpochs));
  app.add_option(
         "--mixed-precision", o.mixed_precision,
         "compute batches in float16 (with a scaled loss) or bfloat16 where that is safe; parameters stay float32")
      ->check(CLI::IsMember({"float16", "bfloat16"}));
  app.add_option("--eval-every", o.eval_every, "epochs between two looks at the held-out data; 0: at the end alone")
      ->transform(whole(0, kMostEpochs));
  app.add_option("--threads", o.threads, "of LibTorch, to compute with (default 1)")->transform(whole(1, 256));
  app.add_option("--seed", o.seed, "of the order of batches; 0: random (default)")->transform(whole());
  app.add_option("--save", o.save, "write the final parameters here (raw float32)");
  app.add_option("--summary", o.summary, "write the final numbers here (JSON)");
  app.add_flag("--json", o.json, "print JSON lines: started, progress, evaluation, download, caught_up, summary");
  app.add_flag("--dry-run", o.dry_run, "make the model, read the data, say what would be done, and exit");
  app.add_option("--compare", o.compare, "compare files of --save and exit")->configurable(false);
}

}  // namespace

std::optional<codec::Compression> compression_from_text(const std::string& text) {
  const auto first = text.find(':');
  if (first == std::string::npos) {
    const auto codec = codec_from_text(text);
    return codec ? std::optional<codec::Compression>(*codec) : std::nullopt;
  }
  const auto second = text.find(':', first + 1);
  const auto threshold = read_whole(std::string_view(text).substr(0, first));
  if (second == std::string::npos || !threshold) return std::nullopt;
  const auto less = codec_from_text(text.substr(first + 1, second - first - 1));
  const auto more = codec_from_text(text.substr(second + 1));
  if (!less || !more) return std::nullopt;
  return codec::Compression::size_adaptive(*threshold, *less, *more);
}

void add_train_options(CLI::App& app, TrainOptions& o) {
  o.optimizer.matchmaking_time = 5s;
  o.optimizer.averaging_timeout = 30s;
  o.swarm.wait_for_swarm = 300s;
  add_workload_options(app, o.workload);
  add_optimizer_options(app, o);
  add_course_options(app, o);
  add_swarm_options(app, o);
  add_run_options(app, o);
  add_compression_options(app, o);
  add_checkpoint_options(app, o);
  make_advanced(app, {"--layers",
                      "--width",
                      "--heads",
                      "--context",
                      "--channels",
                      "--blocks",
                      "--data-seed",
                      "--lr-gamma",
                      "--lr-least",
                      "--average-opt-statistics",
                      "--adamw-learning-rate",
                      "--python-scheduler",
                      "--python-torch",
                      "--until",
                      "--compare",
                      "--trace",
                      "--force-reachability",
                      "--bootstrap-timeout",
                      "--allreduce-timeout",
                      "--next-chunk-timeout",
                      "--load-state-timeout",
                      "--shutdown-timeout",
                      "--average-state-every",
                      "--full-state-every",
                      "--delay-state-averaging",
                      "--offload-gradients-early",
                      "--no-share-loss",
                      "--performance-ema-alpha",
                      "--min-refresh-period",
                      "--max-refresh-period",
                      "--load-state-compression",
                      "--density",
                      "--min-compression-ratio",
                      "--trim",
                      "--clip-radius",
                      "--clip-iterations",
                      "--clip-factor",
                      "--verified-share",
                      "--open-diloco",
                      "--fragments",
                      "--bandwidth"});
}

namespace {

/// The schedule that the flags say together; null: the learning rate stays.
EpochFactor schedule_of(const TrainOptions& o) {
  const std::uint64_t epochs = o.schedule_epochs.value_or(o.max_epochs);
  const bool ends = o.lr_schedule != "constant" && o.lr_schedule != "exponential";
  if (ends && epochs == 0)
    throw Exit{kBadInput, "--lr-schedule " + o.lr_schedule + " needs --schedule-epochs, or --max-epochs"};
  if (ends && o.warmup_epochs + 2 > epochs)
    throw Exit{kBadInput, "--warmup-epochs leaves nothing of the schedule's " + std::to_string(epochs) + " epochs"};
  if (o.lr_schedule == "one-cycle") {
    if (o.warmup_epochs > 0)
      throw Exit{kBadInput, "--lr-schedule one-cycle has a warm-up of its own: leave --warmup-epochs out"};
    return one_cycle(epochs);
  }
  EpochFactor after;
  if (o.lr_schedule == "exponential") after = exponential(o.lr_gamma.value_or(0.999));
  if (o.lr_schedule == "linear") after = linear(epochs - o.warmup_epochs, o.lr_least.value_or(0));
  if (o.lr_schedule == "cosine") after = cosine(epochs - o.warmup_epochs, o.lr_least.value_or(0));
  return o.warmup_epochs > 0 ? linear_warmup(o.warmup_epochs, std::move(after)) : after;
}

void complete_algorithm(TrainOptions& o) {
  const bool muon = o.algorithm == "muon";
  if (!muon && o.adamw_learning_rate)
    throw Exit{kBadInput, "--adamw-learning-rate goes with --optimizer muon, which steps some parameters by AdamW"};
  if (muon && (o.optimizer.offload_optimizer || o.optimizer.delay_optimizer_step))
    throw Exit{kBadInput,
               "--optimizer muon steps where the model is, since its matrix products take long on a processor: leave "
               "--offload-optimizer and --delay-optimizer-step out"};
  if (muon && o.given_momentum && !(*o.given_momentum > 0 && *o.given_momentum < 1))
    throw Exit{kBadInput, "--momentum of muon must be above 0 and below 1"};
  o.learning_rate = o.given_learning_rate.value_or(muon ? 0.02 : 1e-3);
  o.momentum = o.given_momentum.value_or(muon ? 0.95 : 0.9);
}

/// A flag that nothing would look at is a mistake of the user.
void refuse_idle_flags(const TrainOptions& o) {
  struct Flag {
    const char* name;
    bool given;
  };
  using Flags = std::initializer_list<Flag>;
  const auto refuse = [](Flags flags, const std::string& why) {
    for (const auto& [name, given] : flags)
      if (given) throw Exit{kBadInput, std::string(name) + " " + why};
  };
  const auto goes_with = [&](const std::string& option, const std::string& value, std::vector<std::string> wanted,
                             Flags flags) {
    if (std::ranges::find(wanted, value) != wanted.end()) return;
    std::string values = wanted.front();
    for (std::size_t i = 1; i < wanted.size(); ++i) values += (i + 1 < wanted.size() ? ", " : " or ") + wanted[i];
    refuse(flags, "goes with " + option + " " + values);
  };
  goes_with("--optimizer", o.algorithm, {"sgd", "muon"}, {{"--momentum", o.given_momentum.has_value()}});
  goes_with("--lr-schedule", o.lr_schedule, {"exponential"}, {{"--lr-gamma", o.lr_gamma.has_value()}});
  goes_with("--lr-schedule", o.lr_schedule, {"linear", "cosine"}, {{"--lr-least", o.lr_least.has_value()}});
  goes_with("--lr-schedule", o.lr_schedule, {"linear", "cosine", "one-cycle"},
            {{"--schedule-epochs", o.schedule_epochs.has_value()}});
  goes_with("--aggregation", o.aggregation, {"trimmed-mean", "centered-clip"}, {{"--trim", o.trim.has_value()}});
  goes_with("--aggregation", o.aggregation, {"centered-clip"},
            {{"--clip-radius", o.clip_radius.has_value()}, {"--clip-iterations", o.clip_iterations.has_value()}});
  goes_with("--aggregation", o.aggregation, {"clipped-mean", "mean-of-senders"},
            {{"--clip-factor", o.clip_factor.has_value()}});
  goes_with("--agreed-compression", o.agreed_compression, {"top_k", "sparse2"}, {{"--density", o.density.has_value()}});
  if (!o.swarm.use_relay || o.swarm.client_mode)
    refuse({{"--trusted-relays", !o.swarm.trusted_relays.empty()}},
           "is for a trainer that is dialled through relays, and with --no-relay or --client it is not");
  if (o.averager_rank == 0)
    refuse({{"--min-compression-ratio", o.min_compression_ratio.has_value()}}, "goes with --averager-rank");
  if (o.optimizer.use_local_updates && !o.local_steps)
    refuse({{"--averager-rank", o.averager_rank > 0},
            {"--agreed-compression", !o.agreed_compression.empty()},
            {"--grad-compression", o.grad_compression.has_value()},
            {"--clip-radius", o.clip_radius.has_value()},
            {"--clip-iterations", o.clip_iterations.has_value()}},
           "is about gradients that are averaged, and with --use-local-updates none are");
}

/// What the flags leave open is fitted.
void complete_local_steps(TrainOptions& o) {
  auto& run = o.optimizer;
  if (o.target_batch_size) run.target_batch_size = *o.target_batch_size;
  if (!o.local_steps) return;
  run.use_local_updates = true;
  o.outer.momentum = o.outer_momentum.value_or(o.agreed_compression == "sparse2" ? 0 : o.outer.momentum);
  run.outer_optimizer = o.outer;
  if (!o.fit_my_link.value_or(!o.outer.open_diloco)) return;
  run.fit_target_batch_size = !o.target_batch_size;
  run.fit_compression = !o.grad_compression && !run.agreed_grad_compression;
  if (o.fit_my_link && !run.fit_target_batch_size && !run.fit_compression)
    throw Exit{kBadInput,
               "--fit-my-link has nothing to fit: leave --target-batch-size out, or what chooses the compression"};
}

}  // namespace

void complete(TrainOptions& o) {
  auto& run = o.optimizer;
  complete_algorithm(o);
  if (auto factor = schedule_of(o)) o.scheduler = schedule(std::move(factor));
  if (o.aggregation.empty()) o.aggregation = o.agreed_compression == "sparse2" ? "mean-of-senders" : "mean";
  refuse_idle_flags(o);
  averaging::TrimmedMean trimmed_mean;
  trimmed_mean.fraction = o.trim.value_or(trimmed_mean.fraction);
  averaging::CenteredClip centered_clip;
  centered_clip.radius = o.clip_radius.value_or(centered_clip.radius);
  centered_clip.iterations = o.clip_iterations.value_or(centered_clip.iterations);
  // A clip radius for gradients says nothing about parameters: those are averaged by a trimmed mean then.
  if (o.aggregation == "trimmed-mean") run.grad_aggregation = run.state_aggregation = trimmed_mean;
  if (o.aggregation == "centered-clip") run.state_aggregation = trimmed_mean;
  if (o.aggregation == "centered-clip") run.grad_aggregation = centered_clip;
  if (o.aggregation == "clipped-mean")
    run.grad_aggregation = run.state_aggregation =
        averaging::ClippedMean{o.clip_factor.value_or(averaging::ClippedMean().factor)};
  if (o.aggregation == "mean-of-senders") run.grad_aggregation = averaging::MeanOfSenders{o.clip_factor.value_or(0)};
  if (o.grad_compression) run.grad_compression = *o.grad_compression;
  if (const auto codec = codec::codec_from_name(o.agreed_compression)) {
    codec::CodecSpec spec(*codec);
    spec.density = o.density.value_or(spec.density);
    run.agreed_grad_compression = spec;
  }
  complete_local_steps(o);
  if (o.averager_rank > 0)
    run.grad_averager_factory = train::power_sgd_averager(
        {o.averager_rank, o.min_compression_ratio.value_or(averaging::PowerSgdOptions().min_compression_ratio)});
  run.client_mode = o.swarm.client_mode;
  if (run.checkpoints.resume && run.checkpoints.directory.empty())
    throw Exit{kBadInput, "--resume needs --checkpoint-dir"};
  try {
    train::check(run);
    check(o.extras.python);
  } catch (const std::invalid_argument& error) {
    throw Exit{kBadInput, error.what()};
  }
}

}  // namespace cohive::tools
