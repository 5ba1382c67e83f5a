#include "partition.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohive/averaging/errors.hpp"
#include "load_balancer.hpp"

namespace cohive::averaging {

std::vector<std::uint64_t> divide(std::uint64_t total, const std::vector<double>& scores) {
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  std::vector<std::uint64_t> result;
  std::uint64_t given = 0;
  for (double score : scores) {
    result.push_back(static_cast<std::uint64_t>(std::floor(static_cast<double>(total) * score / sum)));
    given += result.back();
  }
  for (; given < total; ++given) {
    std::size_t best = 0;
    double best_quotient = -1;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double quotient = scores[i] / static_cast<double>(result[i] + 1);
      if (quotient > best_quotient) best_quotient = quotient, best = i;
    }
    ++result[best];
  }
  return result;
}

Result<std::vector<std::uint64_t>> peer_fractions(std::uint64_t total, const std::vector<Member>& peers,
                                                  std::uint64_t min_size, const std::stop_token& stop) {
  std::vector<std::optional<double>> bandwidths;
  for (const auto& peer : peers)
    bandwidths.push_back(peer.mode == PeerMode::client ? std::optional(0.0) : peer.bandwidth);
  const bool any_set = std::any_of(bandwidths.begin(), bandwidths.end(), [](const auto& b) { return b && *b > 0; });
  std::vector<double> scores;
  if (any_set) {
    scores = balance_load(bandwidths, total, min_size, stop);
  } else {
    for (const auto& bandwidth : bandwidths) scores.push_back(bandwidth ? 0.0 : 1.0);
  }
  // Peers that can hardly be reached say 0. When all do, they share the work as if none had.
  if (std::none_of(scores.begin(), scores.end(), [](double s) { return s > 0; }))
    for (std::size_t i = 0; i < peers.size(); ++i) scores[i] = peers[i].mode == PeerMode::client ? 0.0 : 1.0;
  if (std::none_of(scores.begin(), scores.end(), [](double s) { return s > 0; })) return Error(Errc::nobody_reduces);
  return divide(total, scores);
}

Result<std::vector<std::uint64_t>> capped_fractions(std::uint64_t total, const std::vector<Member>& peers,
                                                    std::uint64_t min_size, const std::stop_token& stop) {
  auto fractions = peer_fractions(total, peers, min_size, stop);
  if (!fractions) return fractions;
  const auto offers = [](const Member& peer) { return peer.mode != PeerMode::client && peer.bandwidth != 0.0; };
  const bool any_offers = std::ranges::any_of(peers, offers);
  const auto reduces = [&](std::size_t i) { return any_offers ? offers(peers[i]) : peers[i].mode != PeerMode::client; };
  std::size_t reducers = 0;
  for (std::size_t i = 0; i < peers.size(); ++i) reducers += reduces(i);
  const auto shares_up = [total](std::size_t shares) {
    return (total + shares - 1) / std::max<std::size_t>(shares, 1);
  };
  const std::uint64_t cap = std::max(2 * shares_up(peers.size()), shares_up(reducers));
  std::uint64_t excess = 0;
  for (auto& fraction : *fractions) {
    const std::uint64_t kept = std::min(fraction, cap);
    excess += fraction - kept;
    fraction = kept;
  }
  while (excess > 0) {
    std::vector<std::size_t> takers;
    for (std::size_t i = 0; i < peers.size(); ++i)
      if (reduces(i) && (*fractions)[i] < cap) takers.push_back(i);
    const std::uint64_t each = (excess + takers.size() - 1) / takers.size();
    for (const std::size_t i : takers) {
      const std::uint64_t more = std::min({each, cap - (*fractions)[i], excess});
      (*fractions)[i] += more;
      excess -= more;
    }
  }
  return fractions;
}

std::vector<Part> cut_into_parts(const std::vector<PartedTensor>& tensors, std::size_t part_size_bytes,
                                 const std::vector<std::uint64_t>& fractions) {
  std::uint64_t total = 0;
  for (const auto& tensor : tensors) total += tensor.elements;
  const double sum = static_cast<double>(std::accumulate(fractions.begin(), fractions.end(), std::uint64_t{0}));
  std::vector<std::uint64_t> pivots;
  std::uint64_t running = 0;
  for (std::uint64_t fraction : fractions) {
    running += fraction;
    const double share = sum > 0 ? static_cast<double>(running) / sum : 0.0;  // tensors may all be empty
    pivots.push_back(static_cast<std::uint64_t>(share * static_cast<double>(total)));
  }
  pivots.back() = total;

  std::vector<Part> parts;
  std::uint64_t position = 0;
  std::size_t peer = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto values = std::max<std::size_t>(
        1, static_cast<std::size_t>(static_cast<double>(part_size_bytes) / tensors[t].bytes_per_value));
    std::size_t offset = 0;
    do {  // an empty tensor is one empty part
      const std::size_t length = std::min(values, tensors[t].elements - offset);
      std::size_t owner = peer;
      if (position + length > pivots[peer]) {
        // It spans several peers: the first of those with the largest share.
        std::uint64_t best = pivots[peer] - position;
        while (position + length > pivots[peer]) {
          ++peer;
          const std::uint64_t overlap = std::min(position + length, pivots[peer]) - pivots[peer - 1];
          if (overlap > best) best = overlap, owner = peer;
        }
      }
      parts.push_back({t, offset, length, owner});
      position += length;
      offset += length;
    } while (offset < tensors[t].elements);
  }
  return parts;
}

}  // namespace cohive::averaging
