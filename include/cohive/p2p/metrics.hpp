/// \file
/// What the p2p module measures.
#pragma once

#include <array>

#include "cohive/core/metrics.hpp"

namespace cohive::p2p {

/// What a peer did that no honest one does, however late, lost or asleep it is (Reputation).
enum class Offence {
  lied,      ///< said what is not true: forged data of a group, a state or an average that is not what it promised
  malformed  ///< sent what cannot be, against the rules of a protocol
};
/// Names of the offences, for metrics and logs.
inline constexpr std::array kOffences = {"lied", "malformed"};

struct HostMetrics {
  explicit HostMetrics(Metrics& metrics)
      : connections(metrics.gauge("cohive_p2p_connections", "Open connections.")),
        peers(metrics.gauge("cohive_p2p_peers", "Connected peers.")),
        known_peers(metrics.gauge("cohive_p2p_known_peers", "Peers whose addresses are known, connected or not.")),
        routing_peers(metrics.gauge("cohive_p2p_routing_peers", "Peers in the Kademlia routing table.")),
        dials_active(metrics.gauge("cohive_p2p_dials_active", "Addresses being dialled.")),
        lookups_active(metrics.gauge("cohive_p2p_lookups_active", "Walks through peer routing under way.")),
        dials_ok(metrics.counter("cohive_p2p_dials_total", kDials, {{"outcome", "ok"}})),
        dials_failed(metrics.counter("cohive_p2p_dials_total", kDials, {{"outcome", "failed"}})),
        dials_held_back(metrics.counter("cohive_p2p_dials_total", kDials, {{"outcome", "held_back"}})),
        inbound_ok(metrics.counter("cohive_p2p_inbound_total", kInbound, {{"outcome", "ok"}})),
        inbound_failed(metrics.counter("cohive_p2p_inbound_total", kInbound, {{"outcome", "failed"}})),
        inbound_refused(metrics.counter("cohive_p2p_inbound_total", kInbound, {{"outcome", "refused"}})),
        closed_surplus(metrics.counter("cohive_p2p_connections_closed_total", kClosed, {{"reason", "surplus"}})),
        closed_trimmed(metrics.counter("cohive_p2p_connections_closed_total", kClosed, {{"reason", "trimmed"}})),
        closed_for_room(metrics.counter("cohive_p2p_connections_closed_total", kClosed, {{"reason", "room"}})),
        streams_refused(metrics.counter("cohive_p2p_streams_refused_total",
                                        "Streams of a service of which one peer had too many open already.")),
        bytes_in(metrics.counter("cohive_p2p_bytes_total", "Bytes on the wire.", {{"direction", "in"}})),
        bytes_out(metrics.counter("cohive_p2p_bytes_total", "Bytes on the wire.", {{"direction", "out"}})),
        identify_failures(
            metrics.counter("cohive_p2p_identify_failures_total", "Peers that did not identify themselves.")),
        pushes_refused(metrics.counter("cohive_p2p_identify_pushes_refused_total",
                                       "Identify pushes of peers that send them too often.")),
        lookups_found(metrics.counter("cohive_p2p_lookups_total", kLookups, {{"outcome", "found"}})),
        lookups_not_found(metrics.counter("cohive_p2p_lookups_total", kLookups, {{"outcome", "not_found"}})),
        lookup_queries(metrics.counter("cohive_p2p_lookup_queries_total", "Peers asked during lookups.")),
        lookup_seconds(metrics.histogram("cohive_p2p_lookup_seconds", "Time of one lookup.",
                                         {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60})),
        reachability_unknown(metrics.gauge("cohive_p2p_reachability", kReachability, {{"status", "unknown"}})),
        reachability_public(metrics.gauge("cohive_p2p_reachability", kReachability, {{"status", "public"}})),
        reachability_private(metrics.gauge("cohive_p2p_reachability", kReachability, {{"status", "private"}})),
        probes_reached(metrics.counter("cohive_p2p_reachability_probes_total", kProbes, {{"outcome", "reached"}})),
        probes_failed(metrics.counter("cohive_p2p_reachability_probes_total", kProbes, {{"outcome", "failed"}})),
        probes_unanswered(
            metrics.counter("cohive_p2p_reachability_probes_total", kProbes, {{"outcome", "unanswered"}})),
        dial_backs_ok(metrics.counter("cohive_p2p_dial_backs_total", kDialBacks, {{"outcome", "ok"}})),
        dial_backs_failed(metrics.counter("cohive_p2p_dial_backs_total", kDialBacks, {{"outcome", "failed"}})),
        dial_backs_refused(metrics.counter("cohive_p2p_dial_backs_total", kDialBacks, {{"outcome", "refused"}})),
        relay_reservations(metrics.gauge("cohive_p2p_relay_reservations", "Peers that this relay serves.")),
        relay_circuits(metrics.gauge("cohive_p2p_relay_circuits", "Circuits through this relay.")),
        relays_held(metrics.gauge("cohive_p2p_relays_held", "Relays that hold a reservation for this host.")),
        relay_reserved(metrics.counter("cohive_p2p_relay_requests_total", kRelay, {{"outcome", "reserved"}})),
        relay_connected(metrics.counter("cohive_p2p_relay_requests_total", kRelay, {{"outcome", "connected"}})),
        relay_refused(metrics.counter("cohive_p2p_relay_requests_total", kRelay, {{"outcome", "refused"}})),
        relay_bytes(metrics.counter("cohive_p2p_relay_bytes_total", "Bytes carried between peers by this relay.")),
        punches_ok(metrics.counter("cohive_p2p_hole_punches_total", kPunches, {{"outcome", "ok"}})),
        punches_failed(metrics.counter("cohive_p2p_hole_punches_total", kPunches, {{"outcome", "failed"}})),
        memory_held(metrics.gauge("cohive_p2p_memory_held_bytes", "Bytes of buffers that peers fill.")),
        memory_highest(metrics.gauge("cohive_p2p_memory_highest_bytes", "The most of them so far.")),
        banned(metrics.gauge("cohive_p2p_banned_peers", "Peers that are kept away from for what they did.")),
        memory_refused(
            metrics.counter("cohive_p2p_memory_refusals_total", "How often there was no room in their budget.")),
        memory_cut_off(metrics.counter("cohive_p2p_memory_cut_off_peers_total", "Peers cut off to make room in it.")) {
    for (std::size_t i = 0; i < offences.size(); ++i)
      offences[i] =
          metrics.counter("cohive_p2p_offences_total", "What peers did against the rules.", {{"reason", kOffences[i]}});
  }
  Gauge connections, peers, known_peers, routing_peers, dials_active, lookups_active;
  /// held_back: known addresses that were not dialled because they have just failed.
  Counter dials_ok, dials_failed, dials_held_back, inbound_ok, inbound_failed, inbound_refused, closed_surplus,
      closed_trimmed, closed_for_room, streams_refused, bytes_in, bytes_out, identify_failures, pushes_refused,
      lookups_found, lookups_not_found, lookup_queries;
  Histogram lookup_seconds;
  Gauge reachability_unknown, reachability_public, reachability_private;
  Counter probes_reached, probes_failed, probes_unanswered, dial_backs_ok, dial_backs_failed, dial_backs_refused;
  Gauge relay_reservations, relay_circuits, relays_held;
  Counter relay_reserved, relay_connected, relay_refused, relay_bytes, punches_ok, punches_failed;
  Gauge memory_held, memory_highest, banned;
  Counter memory_refused, memory_cut_off;
  std::array<Counter, kOffences.size()> offences;

 private:
  static constexpr const char* kRelay = "Requests of peers to this relay.";
  static constexpr const char* kPunches = "Attempts to replace a relayed connection by a direct one.";
  static constexpr const char* kDials = "Dialled addresses.";
  static constexpr const char* kInbound = "Inbound connections.";
  static constexpr const char* kClosed = "Connections that were closed though they worked.";
  static constexpr const char* kReachability = "Hosts by whether peers outside can connect to them.";
  static constexpr const char* kProbes = "Peers that were asked to dial us back, by what they said.";
  static constexpr const char* kDialBacks = "Requests of peers to be dialled back.";
  static constexpr const char* kLookups = "Walks through peer routing in search of a peer's addresses.";
};

/// Of the ports that a router forwards to a host.
struct PortMappingMetrics {
  explicit PortMappingMetrics(Metrics& metrics)
      : pcp(metrics.gauge("cohive_p2p_ports_mapped", kHelp, {{"protocol", "pcp"}})),
        nat_pmp(metrics.gauge("cohive_p2p_ports_mapped", kHelp, {{"protocol", "nat-pmp"}})),
        upnp(metrics.gauge("cohive_p2p_ports_mapped", kHelp, {{"protocol", "upnp"}})) {}
  Gauge pcp, nat_pmp, upnp;

 private:
  static constexpr const char* kHelp = "Ports that a router forwards to this host.";
};

}  // namespace cohive::p2p
