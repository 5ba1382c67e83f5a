// A round of PowerSGD, as one member runs it. A is its gradient plus its residual, as a matrix; all members do the
// same.
//   P = A Q               > PHASE_P: the mean of all P      > its columns are made orthonormal
//   Q = A^T P             > PHASE_Q: the mean of all Q, and of the tensors that are not compressed
//   average = P Q^T       > into the gradient; residual = A - average
// Source: docs/wire/hivemind.md, section 7.3.
#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "averaging/detail/lease.hpp"
#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/combine.hpp"
#include "power_sgd_state.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kBlockValues = 128 * 1024;  // half a second-level cache; a millisecond of work
constexpr std::size_t kLeastRows = 32;            // of a block: what is read of Q for it is used so often
constexpr std::size_t kMostSums = 16;             // of Q, made beside one another
constexpr std::size_t kMostWorkers = 16;          // threads

/// Some rows of a compressed tensor.
struct Block {
  std::size_t tensor = 0;  ///< among the compressed ones
  std::size_t first_row = 0, rows = 0;
  std::shared_ptr<OwnContribution> own;
  ReadValues read;
};

/// Consecutive blocks of one tensor, whose part of Q is added up apart from the rest. How many there are depends on the
/// tensor alone: results do not depend on the number of threads.
struct Sum {
  std::size_t first_block = 0, end_block = 0;
  ZeroedFloats q;
};

/// One compressed tensor in this round. Work on the pool that goes through all of it keeps it: a round that is dropped
/// does not wait for such work.
struct Factored {
  std::size_t index = 0;  ///< in the schema
  MatrixShape shape;
  std::vector<Sum> sums;
  ZeroedFloats p;       ///< rows x rank, as it travels
  ZeroedFloats q_sent;  ///< columns x rank, as it travels
  ZeroedFloats q;       ///< the average, as rank rows
};

/// Tells whether any sum of so many of these values, each times 1 at most, is finite. Where that is so of a P, for as
/// many values as it has rows, making its columns orthonormal overflows nowhere: no dot product on the way is larger.
bool can_be_summed(std::span<const float> values, std::size_t terms) {
  const float most = std::numeric_limits<float>::max() / (2 * static_cast<float>(terms));
  return std::ranges::all_of(values, [most](float value) { return std::abs(value) <= most; });
}

Result<> require_finite(std::span<const float> values) {
  return all_finite(values) ? ok() : Result<>(Error(Errc::not_finite));
}

class PowerSgdRound {
 public:
  PowerSgdRound(std::shared_ptr<PowerSgd::State> state, RoundContext& round);
  ~PowerSgdRound();

  Task<Result<>> run();

 private:
  using Step = Task<Result<>> (PowerSgdRound::*)(std::size_t index);
  Task<Result<>> for_each(std::size_t count, Step step);
  Task<void> take_turns(std::size_t count, Step step, std::size_t& next, Result<>& outcome);

  Task<Result<>> project_block(std::size_t index);
  Task<Result<>> project_there(std::size_t tensor);
  Task<Result<>> average_p();
  Task<Result<>> orthogonalise(std::size_t tensor);
  Task<Result<>> gather_sum(std::size_t index);
  Task<Result<>> gather_there(std::size_t tensor);
  Task<Result<>> add_sums(std::size_t tensor);
  Task<Result<>> average_q();
  Task<Result<>> take_average(std::size_t tensor);
  Task<Result<>> expand_block(std::size_t index);
  Task<Result<>> expand_there(std::size_t tensor);
  Task<Result<>> keep_factors();

  Result<std::vector<float>> values_of(const Block& block) const;
  Stretch stretch_of(const Block& block) const;
  std::span<float> residual_of(const Block& block) const;
  std::span<float> p_of(const Block& block);
  FactorQ<const float> used_q(std::size_t tensor) const;

  const std::shared_ptr<PowerSgd::State> state_;
  RoundContext& round_;
  Runtime& runtime_;
  const std::size_t rank_;
  const bool counts_;  // else nothing of this member is in the averages, and its residuals stay
  std::shared_ptr<const FactorSet> factors_;
  std::shared_ptr<ResidualSet> residuals_;
  std::vector<std::shared_ptr<Factored>> tensors_;
  /// Where the tensor's own memory computes; null: blocks of it are read here.
  std::vector<std::unique_ptr<FactoredTensor>> there_;
  std::vector<Block> blocks_;
  std::vector<std::pair<std::size_t, std::size_t>> sums_;  // tensor, and number of the sum in it
};

// ---- Dividing the work

PowerSgdRound::PowerSgdRound(std::shared_ptr<PowerSgd::State> state, RoundContext& round)
    : state_(std::move(state)),
      round_(round),
      runtime_(round.runtime()),
      rank_(state_->rank),
      counts_(round.terms().weight > 0),
      residuals_(state_->residuals) {
  if (!residuals_) {
    residuals_ = std::make_shared<ResidualSet>();
    for (const auto& [index, shape] : state_->compressed) residuals_->emplace_back(shape.rows * shape.columns);
  }
  for (std::size_t i = 0; i < state_->compressed.size(); ++i) {
    const auto& [index, shape] = state_->compressed[i];
    Factored& tensor = *tensors_.emplace_back(std::make_shared<Factored>());
    tensor.index = index;
    tensor.shape = shape;
    tensor.p = ZeroedFloats(shape.rows * rank_);
    tensor.q_sent = ZeroedFloats(shape.columns * rank_);
    tensor.q = ZeroedFloats(shape.columns * rank_);
    there_.push_back(round.tensors().factored(index, {shape.rows, shape.columns, rank_}, (*residuals_)[i]));
    if (there_.back()) continue;
    const std::size_t rows = std::max(kLeastRows, kBlockValues / shape.columns);
    const std::size_t begin = blocks_.size();
    for (std::size_t row = 0; row < shape.rows; row += rows)
      blocks_.push_back({i, row, std::min(rows, shape.rows - row), nullptr, nullptr});
    // A sum is as large as Q: there are so few that they take little beside the tensor itself.
    const std::size_t blocks = blocks_.size() - begin;
    const std::size_t sums = std::min(std::clamp<std::size_t>(shape.rows / (8 * rank_), 1, kMostSums), blocks);
    for (std::size_t k = 0; k < sums; ++k) {
      tensor.sums.push_back({begin + blocks * k / sums, begin + blocks * (k + 1) / sums, {}});
      sums_.emplace_back(i, k);
    }
  }
}

PowerSgdRound::~PowerSgdRound() {
  for (const Block& block : blocks_)
    if (block.own) block.own->revoke();
}

/// Runs a step for the indices below `count`, several at a time. What the first error leaves is not begun.
Task<Result<>> PowerSgdRound::for_each(std::size_t count, Step step) {
  static const std::size_t threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostWorkers);
  std::size_t next = 0;
  Result<> outcome = ok();
  std::vector<Task<void>> workers;
  for (std::size_t i = 0; i < std::min(threads, count); ++i) workers.push_back(take_turns(count, step, next, outcome));
  co_await when_all(runtime_, std::move(workers));
  co_return outcome;
}

Task<void> PowerSgdRound::take_turns(std::size_t count, Step step, std::size_t& next, Result<>& outcome) {
  while (outcome && next < count) {
    auto done = co_await (this->*step)(next++);
    if (!done && outcome) outcome = std::move(done);
  }
}

Stretch PowerSgdRound::stretch_of(const Block& block) const {
  const Factored& tensor = *tensors_[block.tensor];
  return {tensor.index, block.first_row * tensor.shape.columns, block.rows * tensor.shape.columns};
}

std::span<float> PowerSgdRound::residual_of(const Block& block) const {
  const Stretch stretch = stretch_of(block);
  return (*residuals_)[block.tensor].on_host().subspan(stretch.offset, stretch.length);
}

std::span<float> PowerSgdRound::p_of(const Block& block) {
  return tensors_[block.tensor]->p.span().subspan(block.first_row * rank_, block.rows * rank_);
}

/// The factor that this round began with.
FactorQ<const float> PowerSgdRound::used_q(std::size_t tensor) const {
  return {(*factors_)[tensor].span(), rank_, tensors_[tensor]->shape.columns};
}

/// Gradient and residual together.
Result<std::vector<float>> PowerSgdRound::values_of(const Block& block) const {
  std::vector<float> values(stretch_of(block).length);
  if (!block.read(0, values)) return lease_ended();
  add_to(values, residual_of(block));
  return values;
}

// ---- The round

Task<Result<>> PowerSgdRound::run() {
  round_.expect_all_reduces(2);
  factors_ = co_await runtime_.offload([state = state_] { return state->factors(); });
  if (counts_) {
    state_->residuals = residuals_;
    if (auto done = co_await for_each(blocks_.size(), &PowerSgdRound::project_block); !done) co_return done;
    if (auto done = co_await for_each(tensors_.size(), &PowerSgdRound::project_there); !done) co_return done;
  }
  if (auto done = co_await average_p(); !done) co_return done;
  if (auto done = co_await for_each(tensors_.size(), &PowerSgdRound::orthogonalise); !done) co_return done;
  if (counts_) {
    if (auto done = co_await for_each(sums_.size(), &PowerSgdRound::gather_sum); !done) co_return done;
    if (auto done = co_await for_each(tensors_.size(), &PowerSgdRound::gather_there); !done) co_return done;
    if (auto done = co_await for_each(tensors_.size(), &PowerSgdRound::add_sums); !done) co_return done;
  }
  if (auto done = co_await average_q(); !done) co_return done;
  if (auto done = co_await for_each(tensors_.size(), &PowerSgdRound::take_average); !done) co_return done;
  if (auto done = co_await for_each(blocks_.size(), &PowerSgdRound::expand_block); !done) co_return done;
  if (auto done = co_await for_each(tensors_.size(), &PowerSgdRound::expand_there); !done) co_return done;
  co_return co_await keep_factors();
}

// ---- P

Task<Result<>> PowerSgdRound::project_block(std::size_t index) {
  Block& block = blocks_[index];
  auto own = co_await round_.tensors().contribute(stretch_of(block), codec::Codec::none, round_.terms());
  if (!own) co_return own.error();
  block.own = std::move(*own);
  co_return co_await offload_leased(runtime_, [this, &block]() -> Result<> {
    auto read = block.own->open();
    if (!read) return read.error();
    block.read = std::move(*read);
    const auto values = values_of(block);
    if (!values) return values.error();
    project(*values, used_q(block.tensor), p_of(block));
    return require_finite(p_of(block));
  });
}

Task<Result<>> PowerSgdRound::project_there(std::size_t tensor) {
  if (!there_[tensor]) co_return ok();
  const auto factored = tensors_[tensor];
  if (auto done = co_await there_[tensor]->project(used_q(tensor).values, factored->p.span()); !done) co_return done;
  co_return co_await runtime_.offload([factored] { return require_finite(factored->p.span()); });
}

Task<Result<>> PowerSgdRound::average_p() {
  std::vector<TensorInfo> infos;
  std::vector<TensorSpan> memory;
  for (const auto& tensor : tensors_) {
    infos.push_back({{static_cast<std::uint32_t>(tensor->shape.rows), static_cast<std::uint32_t>(rank_)}});
    memory.emplace_back(tensor->p.span());
  }
  HostParts parts(runtime_, std::move(infos), std::move(memory));
  co_return co_await round_.all_reduce(parts, "PHASE_P");
}

/// Afterwards no value of P is above 1, but for rounding.
Task<Result<>> PowerSgdRound::orthogonalise(std::size_t tensor) {
  const bool here = !there_[tensor];
  auto done = co_await runtime_.offload([factored = tensors_[tensor], rank = rank_, here]() -> Result<> {
    const auto p = factored->p.span();
    const std::size_t rows = factored->shape.rows;
    if (!can_be_summed(p, rows)) return Error(Errc::not_finite);
    if (!here) return ok();
    std::vector<float> columns(p.size());
    transpose(p, rows, rank, columns);
    orthogonalise_rows(columns, rank, rows);
    transpose(columns, rank, rows, p);
    return ok();
  });
  if (!done || here) co_return done;
  co_return co_await there_[tensor]->take_average(tensors_[tensor]->p.span());
}

// ---- Q

Task<Result<>> PowerSgdRound::gather_sum(std::size_t index) {
  const auto [tensor, number] = sums_[index];
  Factored& factored = *tensors_[tensor];
  Sum& sum = factored.sums[number];
  sum.q = ZeroedFloats(factored.q.span().size());
  const FactorQ<float> q{sum.q.span(), rank_, factored.shape.columns};
  for (std::size_t at = sum.first_block; at < sum.end_block; ++at) {
    auto gathered = co_await offload_leased(runtime_, [this, q, &block = blocks_[at]]() -> Result<> {
      const auto values = values_of(block);
      if (!values) return values.error();
      gather(*values, p_of(block), q);
      return ok();
    });
    if (!gathered) co_return gathered;
  }
  co_return ok();
}

Task<Result<>> PowerSgdRound::gather_there(std::size_t tensor) {
  if (!there_[tensor]) co_return ok();
  const auto factored = tensors_[tensor];
  if (auto done = co_await there_[tensor]->gather(factored->q_sent.span()); !done) co_return done;
  co_return co_await runtime_.offload([factored] { return require_finite(factored->q_sent.span()); });
}

Task<Result<>> PowerSgdRound::add_sums(std::size_t tensor) {
  if (there_[tensor]) co_return ok();
  co_return co_await runtime_.offload([factored = tensors_[tensor], rank = rank_]() -> Result<> {
    for (const Sum& sum : factored->sums) add_to(factored->q.span(), sum.q.span());
    factored->sums.clear();
    transpose(factored->q.span(), rank, factored->shape.columns, factored->q_sent.span());
    return require_finite(factored->q.span());
  });
}

Task<Result<>> PowerSgdRound::average_q() {
  std::vector<TensorInfo> infos;
  std::vector<TensorSpan> memory;
  for (const auto& tensor : tensors_) {
    infos.push_back({{static_cast<std::uint32_t>(tensor->shape.columns), static_cast<std::uint32_t>(rank_)}});
    memory.emplace_back(tensor->q_sent.span());
  }
  HostParts parts(runtime_, std::move(infos), std::move(memory));
  std::vector<JoinedParts::Source> sources;
  for (std::size_t i = 0; i < tensors_.size(); ++i) sources.push_back({&parts, i});
  for (std::size_t other : state_->others) sources.push_back({&round_.tensors(), other});
  JoinedParts joined(std::move(sources));
  co_return co_await round_.all_reduce(joined, "PHASE_Q");
}

/// Refuses a Q whose product with P no float may hold: nobody looks at it once it is made on a device.
Task<Result<>> PowerSgdRound::take_average(std::size_t tensor) {
  co_return co_await runtime_.offload([factored = tensors_[tensor], rank = rank_]() -> Result<> {
    if (!can_be_summed(factored->q_sent.span(), rank)) return Error(Errc::not_finite);
    transpose(factored->q_sent.span(), factored->shape.columns, rank, factored->q.span());
    return ok();
  });
}

// ---- The average

namespace {

/// Puts a stretch of residuals back as it was, unless its average was applied.
class Undo {
 public:
  explicit Undo(std::span<float> values) : values_(values) {}
  ~Undo() {
    if (!applied_) std::ranges::copy(before_, values_.begin());
  }
  Undo(const Undo&) = delete;
  /// Any thread: before the values are changed.
  void remember() { before_.assign(values_.begin(), values_.end()); }
  void applied() { applied_ = true; }

 private:
  std::span<float> values_;
  std::vector<float> before_;
  bool applied_ = false;
};

}  // namespace

Task<Result<>> PowerSgdRound::expand_block(std::size_t index) {
  Block& block = blocks_[index];
  const auto residual = counts_ ? residual_of(block) : std::span<float>();
  Undo undo(residual);
  auto part = std::make_shared<EncodedPart>();
  auto expanded = co_await offload_leased(runtime_, [this, &block, &undo, &part, residual]() -> Result<> {
    const FactorQ<const float> q{tensors_[block.tensor]->q.span(), rank_, tensors_[block.tensor]->shape.columns};
    std::vector<float> average(stretch_of(block).length);
    expand(p_of(block), q, average);
    part->record = Slice::copy_of(raw_bytes(average));
    part->buffer = part->record.view();
    if (!counts_) return ok();
    undo.remember();
    const auto values = values_of(block);
    if (!values) return values.error();
    std::ranges::copy(*values, residual.begin());
    subtract_from(residual, average);
    return ok();
  });
  if (!expanded) co_return expanded;
  const Terms terms{round_.terms().weight, 1};  // alpha has counted in both phases, as with hivemind
  auto applied = co_await round_.tensors().apply(stretch_of(block), {Answer::Form::average, part, std::nullopt}, terms);
  if (applied) undo.applied();
  co_return applied;
}

Task<Result<>> PowerSgdRound::expand_there(std::size_t tensor) {
  if (!there_[tensor]) co_return ok();
  co_return co_await there_[tensor]->apply(tensors_[tensor]->q.span(), counts_);
}

/// The last step. A row of zeros would stay so for ever, as nothing is projected on it: the one before it is kept.
Task<Result<>> PowerSgdRound::keep_factors() {
  co_return co_await offload_leased(runtime_, [this]() -> Result<> {
    auto kept = std::make_shared<FactorSet>();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::size_t columns = tensors_[i]->shape.columns;
      for (std::size_t c = 0; c < rank_; ++c) {
        const auto row = tensors_[i]->q.span().subspan(c * columns, columns);
        if (std::ranges::all_of(row, [](float value) { return value == 0; }))
          std::ranges::copy(used_q(i).values.subspan(c * columns, columns), row.begin());
      }
      kept->push_back(std::move(tensors_[i]->q));
    }
    factors_.reset();
    state_->replace_factors(std::move(kept));
    there_.clear();  // much memory to give back
    tensors_.clear();
    return ok();
  });
}

}  // namespace

Task<Result<>> run_power_sgd(std::shared_ptr<PowerSgd::State> state, RoundContext& round) {
  PowerSgdRound work(std::move(state), round);
  co_return co_await work.run();
}

}  // namespace cohive::averaging
