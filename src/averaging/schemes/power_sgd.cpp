#include "cohive/averaging/power_sgd.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "power_sgd_state.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kHighestRank = 4096;  // far above what saves anything

const PowerSgdOptions& checked(const PowerSgdOptions& options) {
  if (options.averager_rank < 1 || options.averager_rank > kHighestRank)
    throw std::invalid_argument("averager_rank must be from 1 to " + std::to_string(kHighestRank));
  if (!(options.min_compression_ratio >= 0 && options.min_compression_ratio <= 1))
    throw std::invalid_argument("min_compression_ratio must be from 0 to 1");
  return options;
}

/// hivemind's rule: the same on all members, or their parts do not fit together.
bool worth_compressing(const TensorInfo& tensor, const PowerSgdOptions& options) {
  if (tensor.shape.size() < 2 || tensor.elements() == 0) return false;
  const MatrixShape shape = matrix_of(tensor.shape);
  const auto factors = static_cast<double>(options.averager_rank * (shape.rows + shape.columns));
  return 1 - factors / static_cast<double>(tensor.elements()) >= options.min_compression_ratio;
}

/// What is owed of a tensor: zeros where nothing is.
std::vector<float> all_values(const codec::Residuals& residuals) {
  std::vector<float> owed = residuals.values();
  owed.resize(residuals.size());
  return owed;
}

/// Well mixed bits (splitmix64) of a counter, as a value from -1 to 1.
float drawn(std::uint64_t counter) {
  std::uint64_t bits = (counter + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  return static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23f;
}

/// The same for all peers: what they project on is common to them from the first round on.
std::shared_ptr<const FactorSet> first_factors(const PowerSgd::State& state) {
  auto factors = std::make_shared<FactorSet>();
  for (const CompressedTensor& tensor : state.compressed) {
    auto& values = factors->emplace_back(state.rank * tensor.shape.columns);
    const std::uint64_t stream = static_cast<std::uint64_t>(tensor.index) << 40;
    for (std::size_t i = 0; i < values.span().size(); ++i) values.span()[i] = drawn(stream + i);
  }
  return factors;
}

}  // namespace

PowerSgd::State::State(std::span<const TensorInfo> schema, const PowerSgdOptions& options)
    : rank(checked(options).averager_rank) {
  for (std::size_t i = 0; i < schema.size(); ++i) {
    if (!worth_compressing(schema[i], options)) {
      others.push_back(i);
      continue;
    }
    compressed.push_back({i, matrix_of(schema[i].shape)});
    indices.push_back(i);
  }
}

std::shared_ptr<const FactorSet> PowerSgd::State::factors() {
  {
    const std::lock_guard lock(mutex_);
    if (factors_) return factors_;
  }
  auto first = first_factors(*this);
  const std::lock_guard lock(mutex_);
  if (!factors_) factors_ = std::move(first);
  return factors_;
}

void PowerSgd::State::replace_factors(std::shared_ptr<const FactorSet> replacement) {
  const std::lock_guard lock(mutex_);
  factors_.swap(replacement);
}

codec::Shape PowerSgd::State::shape_of_factor(std::size_t number) const {
  return {static_cast<std::uint32_t>(compressed[number].shape.columns), static_cast<std::uint32_t>(rank)};
}

codec::Shape PowerSgd::State::shape_of_residual(std::size_t number) const {
  const MatrixShape& shape = compressed[number].shape;
  return {static_cast<std::uint32_t>(shape.rows), static_cast<std::uint32_t>(shape.columns)};
}

PowerSgd::PowerSgd(std::span<const TensorInfo> schema, const PowerSgdOptions& options)
    : state_(std::make_shared<State>(schema, options)) {}
PowerSgd::PowerSgd(PowerSgd&&) noexcept = default;
PowerSgd& PowerSgd::operator=(PowerSgd&&) noexcept = default;
PowerSgd::~PowerSgd() = default;

Scheme PowerSgd::scheme() const {
  return [state = state_](RoundContext& round) { return run_power_sgd(state, round); };
}

void PowerSgd::reset_residuals() {
  state_->residuals.reset();
}

std::vector<float> PowerSgd::residual(std::size_t tensor) const {
  const auto at = std::ranges::find(state_->indices, tensor);
  if (at == state_->indices.end() || !state_->residuals) return {};
  const auto& residual = (*state_->residuals)[static_cast<std::size_t>(at - state_->indices.begin())];
  return all_values(residual);
}

const std::vector<std::size_t>& PowerSgd::compressed() const noexcept {
  return state_->indices;
}

namespace {

codec::Tensor matrix_of_values(const codec::Shape& shape, std::span<const float> values) {
  return {codec::DType::float32, shape, false, Slice::copy_of(raw_bytes(values))};
}

/// On the pool: the factors, as they travel.
std::vector<codec::Tensor> tensors_of(const PowerSgd::State& state, const FactorSet& factors) {
  std::vector<codec::Tensor> tensors;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const auto values = factors[i].span();
    std::vector<float> travelling(values.size());
    transpose(values, state.rank, state.compressed[i].shape.columns, travelling);
    tensors.push_back(matrix_of_values(state.shape_of_factor(i), travelling));
  }
  return tensors;
}

Error does_not_fit(std::string what) {
  return Error(Errc::bad_state, std::move(what));
}

/// The values of a tensor that a peer or a file brings.
Result<> values_from(const codec::Tensor& tensor, const codec::Shape& shape, std::span<float> values,
                     const char* what) {
  if (tensor.dtype != codec::DType::float32 || tensor.shape != shape || tensor.data.size() != values.size_bytes())
    return does_not_fit(std::string(what) + " of another shape: has it the same averager_rank?");
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), values.size_bytes());
  return all_finite(values) ? ok() : Result<>(does_not_fit(std::string(what) + " that is not finite"));
}

/// On the pool.
Result<std::shared_ptr<const FactorSet>> factors_of(const PowerSgd::State& state,
                                                    const std::vector<codec::Tensor>& tensors) {
  if (tensors.size() != state.compressed.size())
    return does_not_fit(std::to_string(tensors.size()) + " factors instead of " +
                        std::to_string(state.compressed.size()));
  auto factors = std::make_shared<FactorSet>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t columns = state.compressed[i].shape.columns;
    std::vector<float> values(state.rank * columns);
    if (auto read = values_from(tensors[i], state.shape_of_factor(i), values, "a factor"); !read) return read.error();
    auto& rows = factors->emplace_back(values.size());
    transpose(values, columns, state.rank, rows.span());
  }
  return factors;
}

/// On the pool. Null: there are none.
Result<std::shared_ptr<ResidualSet>> residuals_of(const PowerSgd::State& state,
                                                  const std::vector<codec::Tensor>& tensors) {
  if (tensors.empty()) return std::shared_ptr<ResidualSet>();
  if (tensors.size() != state.compressed.size())
    return does_not_fit(std::to_string(tensors.size()) + " residuals instead of " +
                        std::to_string(state.compressed.size()));
  auto residuals = std::make_shared<ResidualSet>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& residual = residuals->emplace_back(state.compressed[i].shape.rows * state.compressed[i].shape.columns);
    if (auto read = values_from(tensors[i], state.shape_of_residual(i), residual.on_host(), "a residual"); !read)
      return read.error();
  }
  return residuals;
}

}  // namespace

// ---- Factors for newcomers

StateSharing::Provider PowerSgd::provider(std::string group_bits) const {
  return [state = state_, group_bits = std::move(group_bits)]() -> std::optional<SharedState> {
    SharedState shared{msgpack::Map{{{"group_bits", group_bits}}}, tensors_of(*state, *state->factors())};
    for (std::size_t i = 0; i < shared.tensors.size(); ++i)
      shared.infos.push_back(
          {"buffer_q_" + std::to_string(i), state->shape_of_factor(i), codec::DType::float32, codec::Role::gradient});
    return shared;
  };
}

Task<Result<>> PowerSgd::load(Runtime& runtime, DownloadedState downloaded) {
  const auto state = state_;
  const PeerId donor = downloaded.donor;
  auto factors = co_await runtime.offload(
      [state, tensors = std::move(downloaded.tensors)] { return factors_of(*state, tensors); });
  if (!factors) co_return factors.error().with_peer(donor);
  state->replace_factors(std::move(*factors));
  co_return ok();
}

// ---- A pause of this peer

Task<PowerSgd::Saved> PowerSgd::save(Runtime& runtime) const {
  co_return co_await runtime.offload(
      [state = state_, residuals = std::shared_ptr<const ResidualSet>(state_->residuals)] {
        Saved saved{tensors_of(*state, *state->factors()), {}};
        for (std::size_t i = 0; residuals && i < residuals->size(); ++i)
          saved.residuals.push_back(matrix_of_values(state->shape_of_residual(i), all_values((*residuals)[i])));
        return saved;
      });
}

Task<Result<>> PowerSgd::restore(Runtime& runtime, Saved saved) {
  struct Read {
    std::shared_ptr<const FactorSet> factors;
    std::shared_ptr<ResidualSet> residuals;
  };
  const auto state = state_;
  auto read = co_await runtime.offload([state, saved = std::move(saved)]() -> Result<Read> {
    auto factors = factors_of(*state, saved.factors);
    if (!factors) return factors.error();
    auto residuals = residuals_of(*state, saved.residuals);
    if (!residuals) return residuals.error();
    return Read{std::move(*factors), std::move(*residuals)};
  });
  if (!read) co_return read.error();
  state->replace_factors(std::move(read->factors));
  state->residuals = std::move(read->residuals);
  co_return ok();
}

std::uint64_t PowerSgd::state_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const CompressedTensor& tensor : state_->compressed)
    bytes += state_->rank * tensor.shape.columns * sizeof(float);
  return bytes;
}

}  // namespace cohive::averaging
