/// \file
/// What the averaging module measures.
#pragma once

#include <array>
#include <string>

#include "cohive/core/metrics.hpp"

namespace cohive::averaging {

/// How an attempt to join a leader's group ended.
enum class JoinOutcome { grouped, refused, unreachable, lost, disbanded };
inline constexpr std::array kJoinOutcomes = {"grouped", "refused", "unreachable", "lost", "disbanded"};

/// Why a sender was left out of a round: NaN or infinity in a part; a part or message that does not fit; nothing came
/// in time; its stream or connection ended early.
enum class BanReason { not_finite, malformed, silent, gone };
inline constexpr std::array kBanReasons = {"not_finite", "malformed", "silent", "gone"};

struct AveragingMetrics {
  AveragingMetrics(Metrics& metrics, const std::string& averager)
      : rounds_ok(metrics.counter("cohive_averaging_rounds_total", "Averaging rounds.",
                                  {{"averager", averager}, {"outcome", "ok"}})),
        rounds_partial(metrics.counter("cohive_averaging_rounds_total", "Averaging rounds.",
                                       {{"averager", averager}, {"outcome", "partial"}})),
        rounds_failed(metrics.counter("cohive_averaging_rounds_total", "Averaging rounds.",
                                      {{"averager", averager}, {"outcome", "failed"}})),
        no_group(metrics.counter("cohive_averaging_rounds_total", "Averaging rounds.",
                                 {{"averager", averager}, {"outcome", "no_group"}})),
        matchmaking_seconds(metrics.histogram("cohive_averaging_matchmaking_seconds", "Time to find a group.", bounds(),
                                              {{"averager", averager}})),
        allreduce_seconds(metrics.histogram("cohive_averaging_allreduce_seconds", "Time of the all-reduce.", bounds(),
                                            {{"averager", averager}})),
        group_size(
            metrics.gauge("cohive_averaging_group_size", "Members of the last group.", {{"averager", averager}})),
        round_parts(metrics.gauge("cohive_averaging_round_parts", "Parts of the all-reduce that runs; 0: none does.",
                                  {{"averager", averager}})),
        round_parts_done(metrics.gauge("cohive_averaging_round_parts_done", "Parts of it whose average is there.",
                                       {{"averager", averager}})),
        bandwidth(metrics.gauge("cohive_averaging_bandwidth_bytes_per_second",
                                "What the peer tells its groups about its link; 0: nothing.",
                                {{"averager", averager}})),
        bytes_sent(metrics.counter("cohive_averaging_bytes_total", "Tensor bytes.",
                                   {{"averager", averager}, {"direction", "out"}})),
        bytes_received(metrics.counter("cohive_averaging_bytes_total", "Tensor bytes.",
                                       {{"averager", averager}, {"direction", "in"}})),
        reducers_failed(metrics.counter("cohive_averaging_failed_reducers_total",
                                        "Reducers whose parts kept local values.", {{"averager", averager}})),
        averages_right(checked(metrics, averager, "right")),
        averages_wrong(checked(metrics, averager, "wrong")),
        averages_not_shown(checked(metrics, averager, "not_shown")) {
    for (std::size_t i = 0; i < joins.size(); ++i)
      joins[i] = metrics.counter("cohive_averaging_joins_total", "Attempts to join a leader's group.",
                                 {{"averager", averager}, {"outcome", kJoinOutcomes[i]}});
    for (std::size_t i = 0; i < senders_banned.size(); ++i)
      senders_banned[i] = metrics.counter("cohive_averaging_banned_senders_total", "Senders left out of a round.",
                                          {{"averager", averager}, {"reason", kBanReasons[i]}});
  }
  static Counter checked(Metrics& metrics, const std::string& averager, const char* outcome) {
    return metrics.counter("cohive_averaging_checked_averages_total", "Averages of other members that were made again.",
                           {{"averager", averager}, {"outcome", outcome}});
  }
  /// Returns bounds up to the longest averaging_timeout that the trainer takes.
  static std::vector<double> bounds() { return {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600}; }
  Counter rounds_ok, rounds_partial, rounds_failed, no_group;
  Histogram matchmaking_seconds, allreduce_seconds;
  Gauge group_size, round_parts, round_parts_done, bandwidth;
  Counter bytes_sent, bytes_received, reducers_failed;
  Counter averages_right, averages_wrong, averages_not_shown;
  std::array<Counter, kJoinOutcomes.size()> joins;
  std::array<Counter, kBanReasons.size()> senders_banned;
};

/// Of StateSharing; labelled like the averager beside it.
struct StateMetrics {
  StateMetrics(Metrics& metrics, const std::string& prefix)
      : uploads(metrics.counter("cohive_averaging_state_transfers_total", "State transfers.",
                                {{"averager", prefix}, {"direction", "out"}})),
        downloads(metrics.counter("cohive_averaging_state_transfers_total", "State transfers.",
                                  {{"averager", prefix}, {"direction", "in"}})),
        bytes_sent(metrics.counter("cohive_averaging_state_bytes_total", "Tensor bytes of shared states.",
                                   {{"averager", prefix}, {"direction", "out"}})),
        bytes_received(metrics.counter("cohive_averaging_state_bytes_total", "Tensor bytes of shared states.",
                                       {{"averager", prefix}, {"direction", "in"}})),
        donors_rejected(metrics.counter("cohive_averaging_rejected_donors_total",
                                        "Donors that sent other bytes than they had promised.",
                                        {{"averager", prefix}})),
        download_done(metrics.gauge("cohive_averaging_download_done_bytes", "Of the last state download.",
                                    {{"averager", prefix}})),
        download_total(metrics.gauge("cohive_averaging_download_size_bytes",
                                     "Size of the last state downloaded; 0 when the donor did not say.",
                                     {{"averager", prefix}})),
        download_donors(
            metrics.gauge("cohive_averaging_download_donors", "Donors sending to us now.", {{"averager", prefix}})) {}
  Counter uploads, downloads, bytes_sent, bytes_received, donors_rejected;
  Gauge download_done, download_total, download_donors;
};

}  // namespace cohive::averaging
