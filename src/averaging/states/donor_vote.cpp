#include "donor_vote.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "averaging/tensors/decode_into.hpp"
#include "codec/detail/values.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "p2p/detail/network_block.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kVoters = 5;  // at once; the first ones by rank, the others drawn
constexpr std::size_t kVotersByRank = 3;
constexpr std::size_t kIndependent = 3;  // voters of different networks are enough
constexpr int kBatches = 2;              // of voters, where the first one has fewer
constexpr Duration kVoteTime = 45s;      // for donors that hash a large state first
constexpr Duration kMoreTime = 3s;       // for a donor after half have voted, beside as long again as that took
constexpr Duration kReuse = 20s;         // donors hang up on clients that ask for nothing for longer
constexpr std::size_t kSamples = 8;      // pieces
// Unrelated models are 0.7 apart, a model and its negative 1; a model and itself an epoch later a hundredth.
constexpr double kNear = 0.1;

using Sample = std::vector<float>;

struct Voter {
  PeerId peer;
  DonorCall call;
  std::optional<std::uint64_t> block;
  std::vector<std::optional<Sample>> samples = {};
  std::vector<PeerId> others = {};  // whose metadata are of another time or run
  bool acquainted = false;
  std::size_t acquaintances = 0, networks = 0, peers = 0;  // that agree; of acquaintances it is one itself
};

/// Same places for all voters of one structure: numbers of pieces, drawn by their values, of parameters where there are
/// any.
std::vector<std::uint32_t> pieces_to_compare(const Manifest& manifest, const std::vector<double>& draws) {
  const auto chosen = [&](auto fits) {
    std::vector<std::pair<std::uint64_t, std::size_t>> ends;  // of the values of each tensor, counted on
    std::uint64_t total = 0;
    for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
      const ManifestTensor& tensor = manifest.tensors[t];
      if (tensor.values == 0 || !fits(tensor)) continue;
      ends.emplace_back(total += tensor.values, t);
    }
    return ends;
  };
  auto ends = chosen([](const ManifestTensor& t) { return t.requires_grad && codec::is_floating(t.dtype); });
  if (ends.empty()) ends = chosen([](const ManifestTensor& t) { return codec::is_floating(t.dtype); });
  if (ends.empty()) ends = chosen([](const ManifestTensor&) { return true; });
  std::vector<std::uint32_t> pieces;
  for (const double draw : draws) {
    if (ends.empty()) break;
    const auto value = static_cast<std::uint64_t>(draw * static_cast<double>(ends.back().first));
    auto at = std::ranges::upper_bound(ends, value, {}, [](const auto& end) { return end.first; });
    if (at == ends.end()) --at;
    const ManifestTensor& tensor = manifest.tensors[at->second];
    const std::uint64_t within = value - (at->first - tensor.values);
    const std::uint64_t in_piece = kPieceBytes / codec::size_of(tensor.dtype);
    pieces.push_back(tensor.first_piece + static_cast<std::uint32_t>(within / in_piece));
  }
  std::ranges::sort(pieces);
  pieces.erase(std::ranges::unique(pieces).begin(), pieces.end());
  return pieces;
}

/// Nothing when the piece is not what the voter's own manifest says.
std::optional<Sample> decode_sample(const Manifest& manifest, std::uint32_t index, ByteView data) {
  if (crypto::sha256(data) != manifest.hashes[index]) return std::nullopt;
  const Piece piece = manifest.piece(index);
  const ManifestTensor& is = manifest.tensors[piece.tensor];
  Bytes values(manifest.bytes_of(piece));
  if (!decode_into(values.data(), is.codec, is.dtype, piece.values, data)) return std::nullopt;
  if (!codec::is_floating(is.dtype)) return Sample(values.begin(), values.end());
  Sample sample(piece.values);
  codec::widen(is.dtype, values.data(), sample.data(), piece.values);
  return sample;
}

/// Between 0 (equal) and 1 (opposite).
double distance(const Sample& a, const Sample& b) {
  double difference = 0, of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    difference += (x - y) * (x - y);
    of_a += x * x;
    of_b += y * y;
  }
  const double size = std::sqrt(of_a) + std::sqrt(of_b);
  return size > 0 ? std::sqrt(difference) / size : 0;
}

bool agree(const Voter& a, const Voter& b) {
  if (a.call.root == b.call.root) return true;
  if (std::ranges::find(a.others, b.peer) != a.others.end()) return false;
  if (a.call.manifest.tensors != b.call.manifest.tensors || a.samples.size() != b.samples.size()) return false;
  std::size_t near = 0;
  for (std::size_t i = 0; i < a.samples.size(); ++i)
    near += a.samples[i] && b.samples[i] && distance(*a.samples[i], *b.samples[i]) <= kNear;
  return near > 0 && 2 * near > a.samples.size();
}

// ---- Asking

/// \param silent  this donor is among them, and is not once it has answered, whatever it was
Task<void> ask(Dht& dht, PeerId donor, const PieceSource& source, Deadline deadline, std::vector<Voter>& voters,
               std::set<PeerId>& silent) {
  auto asking = call_donor(dht.host(), donor, source.protocol, {}, source.chunk_timeout, source.max_bytes);
  auto call = co_await within(dht.runtime(), deadline, std::move(asking), "vote of a donor");
  if (call || call.error() != cohive::Errc::timeout) silent.erase(donor);
  if (!call) {
    log::debug("averaging", "{} does not vote: {}", donor, call.error());
    co_return;
  }
  const auto address = dht.host().remote_address(donor);
  voters.push_back({donor,
                    std::move(*call),
                    address ? p2p::network_block(*address) : std::nullopt,
                    {},
                    {},
                    dht.host().reputation().has_history(donor)});
}

Task<void> fetch_samples(Runtime& runtime, Voter& voter, std::vector<double> draws, Deadline deadline) {
  const auto pieces = pieces_to_compare(voter.call.manifest, draws);
  rpc::ClientStream& call = *voter.call.call;
  for (const std::uint32_t index : pieces)
    if (auto asked = co_await call.send(as_bytes(encode_piece_request(index)), deadline); !asked) co_return;
  std::vector<std::optional<Sample>> samples;
  for (const std::uint32_t index : pieces) {
    auto record = co_await call.receive(deadline);
    if (!record || !*record) co_return;
    const auto piece = parse_piece((*record)->view());
    if (!piece || piece->index != index) co_return;
    samples.push_back(decode_sample(voter.call.manifest, index, piece->data));
    co_await runtime.yield();
  }
  voter.samples = std::move(samples);
}

/// Finds the voters whose parameters may be near and whose metadata are not: a state that claims a far epoch.
Task<void> compare_metadata(Runtime& runtime, std::vector<Voter>& voters, const PieceSource& source) {
  std::vector<std::string> encoded;
  for (const Voter& voter : voters) encoded.push_back(voter.call.manifest.metadata);
  auto differing = co_await runtime.offload([encoded = std::move(encoded), alike = source.alike] {
    std::vector<msgpack::Value> metadata;
    for (const std::string& text : encoded) {
      auto decoded = msgpack::decode(as_bytes(text));
      metadata.push_back(decoded ? std::move(*decoded) : msgpack::Value());
    }
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t i = 0; i < metadata.size(); ++i)
      for (std::size_t k = 0; k < metadata.size(); ++k)
        if (i != k && !alike(metadata[i], metadata[k])) pairs.emplace_back(i, k);
    return pairs;
  });
  for (const auto& [one, other] : differing) voters[one].others.push_back(voters[other].peer);
}

Task<void> count_when_ended(Task<void> task, std::size_t& ended, Condition& changed) {
  co_await std::move(task);
  ++ended;
  changed.notify_all();
}

/// Waits for all tasks, but for those that are much later than a half of them was: a donor on a slow link does not hold
/// the vote up.
/// \param succeeded  how many have ended well
Task<void> await_most(Runtime& runtime, std::vector<Task<void>> tasks, std::function<std::size_t()> succeeded) {
  const std::size_t count = tasks.size();
  const TimePoint began = runtime.now();
  std::size_t ended = 0;
  Condition changed(runtime, "votes of donors");
  Nursery group(runtime, "votes of donors");
  for (Task<void>& task : tasks) group.spawn(count_when_ended(std::move(task), ended, changed), "vote of a donor");
  while (ended < count && 2 * succeeded() < count) co_await changed.wait();
  const Deadline end = runtime.after(runtime.now() - began + kMoreTime);
  while (ended < count)
    if (!co_await changed.wait(end)) break;
}

std::size_t independent(const std::vector<Voter>& voters) {
  std::set<std::uint64_t> blocks;
  std::size_t alone = 0;
  for (const Voter& voter : voters) voter.block ? void(blocks.insert(*voter.block)) : void(++alone);
  return blocks.size() + alone;
}

/// Compares the samples of all with those of all others, in a turn of the loop for each.
Task<void> count_support(Runtime& runtime, std::vector<Voter>& voters) {
  for (Voter& voter : voters) {
    co_await runtime.yield();
    std::set<std::uint64_t> blocks;
    voter.acquaintances = voter.acquainted;
    for (const Voter& other : voters) {
      if (&other == &voter || !agree(voter, other)) continue;
      ++voter.peers;
      voter.acquaintances += other.acquainted;
      if (!other.block)
        ++voter.networks;
      else if (other.block != voter.block)
        blocks.insert(*other.block);
    }
    voter.networks += blocks.size();
  }
}

/// Those of whom something is known first, the ones far down the list in a random order.
std::vector<PeerId> in_order_of_asking(Dht& dht, const std::vector<PeerId>& donors) {
  std::vector<PeerId> candidates;
  for (const bool acquainted : {true, false})
    std::ranges::copy_if(donors, std::back_inserter(candidates),
                         [&](const PeerId& peer) { return dht.host().reputation().has_history(peer) == acquainted; });
  for (std::size_t i = kVotersByRank; i < candidates.size(); ++i)
    std::swap(candidates[i], candidates[i + dht.runtime().random()() % (candidates.size() - i)]);
  return candidates;
}

auto support_of(const Voter& voter) {
  return std::tuple(voter.acquaintances, voter.networks, voter.peers);
}

/// Puts those first that most agree with; of those with as many, the ones that are first among the donors.
void sort_by_support(std::vector<Voter>& voters, const std::vector<PeerId>& donors) {
  const auto place = [&](const PeerId& peer) { return std::ranges::find(donors, peer) - donors.begin(); };
  const auto weight = [&](const Voter& voter) { return std::pair(support_of(voter), -place(voter.peer)); };
  std::ranges::sort(voters, [&](const Voter& a, const Voter& b) { return weight(a) > weight(b); });
}

/// Believes those that agree with the first of the ranked voters, or are as good; they come before the other donors.
void choose_among(const std::vector<Voter>& voters, Election& result) {
  const auto rest = std::exchange(result.order, {});
  std::vector<PeerId> as_good;
  for (const Voter& voter : voters) {
    const bool loses = support_of(voter) < support_of(voters.front());
    (agree(voter, voters.front()) ? result.order : loses ? result.outvoted : as_good).push_back(voter.peer);
  }
  result.order.insert(result.order.end(), as_good.begin(), as_good.end());
  result.believed = result.order.size();
  for (const PeerId& peer : rest)
    if (std::ranges::find(result.order, peer) == result.order.end() &&
        std::ranges::find(result.outvoted, peer) == result.outvoted.end())
      result.order.push_back(peer);
  for (const PeerId& peer : result.outvoted)
    log::info("averaging", "the state of {} is not asked for: more donors agree on another one", peer);
}

}  // namespace

Task<Election> elect_donor(Dht& dht, std::vector<PeerId> donors, const PieceSource& source, Deadline deadline) {
  Runtime& runtime = dht.runtime();
  Election result{donors, std::nullopt, {}};
  if (donors.size() < 2) co_return result;
  const TimePoint began = runtime.now();
  const Deadline end = deadline.min(runtime.after(kVoteTime));
  std::vector<PeerId> candidates = in_order_of_asking(dht, donors);
  std::vector<Voter> voters;
  std::set<PeerId> silent;
  for (int batch = 0; batch < kBatches && !candidates.empty() && independent(voters) < kIndependent; ++batch) {
    std::vector<Task<void>> asked;
    for (std::size_t i = 0; i < std::min(kVoters, candidates.size()); ++i) {
      silent.insert(candidates[i]);
      asked.push_back(ask(dht, candidates[i], source, end, voters, silent));
    }
    candidates.erase(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(asked.size()));
    const std::size_t before = voters.size();
    co_await await_most(runtime, std::move(asked), [&] { return voters.size() - before; });
  }
  std::erase_if(result.order, [&](const PeerId& donor) { return silent.contains(donor); });
  std::ranges::copy_if(donors, std::back_inserter(result.order),
                       [&](const PeerId& donor) { return silent.contains(donor); });
  const bool all_equal =
      std::ranges::all_of(voters, [&](const Voter& v) { return v.call.root == voters[0].call.root; });
  if (!all_equal) {
    if (source.alike) co_await compare_metadata(runtime, voters, source);
    std::vector<double> draws(kSamples);
    for (double& draw : draws) draw = runtime.random_unit();
    std::vector<Task<void>> fetching;
    for (Voter& voter : voters) fetching.push_back(fetch_samples(runtime, voter, draws, end));
    co_await await_most(runtime, std::move(fetching), [&] {
      return static_cast<std::size_t>(std::ranges::count_if(voters, [](const Voter& v) { return !v.samples.empty(); }));
    });
  }
  co_await count_support(runtime, voters);
  if (voters.empty()) co_return result;
  sort_by_support(voters, donors);
  if (voters.front().peers + voters.front().acquaintances == 0) co_return result;  // of strangers no two agree
  choose_among(voters, result);
  const bool answered = all_equal || !voters.front().samples.empty();
  if (answered && runtime.now() - began < kReuse) result.call = std::move(voters.front().call);
  co_return result;
}

}  // namespace cohive::averaging
