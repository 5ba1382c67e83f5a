/// \file
/// Dht: hivemind's distributed hash table, in the same swarm as Python peers. Source: docs/wire/hivemind.md, sections
/// 3, 4. Loop thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cohive/core/msgpack.hpp"
#include "cohive/dht/authorization.hpp"
#include "cohive/dht/dht_id.hpp"
#include "cohive/dht/state.hpp"
#include "cohive/dht/validation.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::dht {

/// hivemind's defaults; times as durations.
struct DhtOptions {
  std::size_t bucket_size = 20;  ///< nodes per bucket of the routing table, and nodes that a find call names per key
  std::size_t num_replicas = 5;  ///< nodes that hold a record
  /// Nodes that a get of the latest record asks around a key, twice the replicas, unless the num_replicas nearest all
  /// have the same: what is stored goes there. A store asks num_replicas. hivemind asks bucket_size of them each time,
  /// for several times the work.
  std::size_t beam_size = 10;
  std::size_t depth_modulo = 5;      ///< buckets are split where their depth is no multiple of it, too
  Duration wait_timeout = 3s;        ///< one RPC
  Duration bootstrap_timeout = 15s;  ///< to hear of the initial peers when the node starts
  Duration refresh_timeout = 0s;     ///< refresh buckets idle for this long; 0: never
  bool cache_locally = true;         ///< keep what a get has found, until it expires
  std::size_t cache_nearest = 1;  ///< of the nodes nearest to a key, those without what a get found: so many get a copy
  std::size_t cache_size = 0;     ///< records; 0: bounded by max_records only
  Duration cache_refresh_before_expiry = 5s;  ///< when cached keys in use are looked up again; 0: never
  bool cache_on_store = true;                 ///< keep a copy of what this node stores at other nodes
  bool reuse_get_requests = true;  ///< gets of one key at a time share a search, except those of the latest record
  std::size_t num_workers = 4;     ///< parallel calls of one search
  std::size_t chunk_size = 16;     ///< keys per refresh batch, and per find call at most
  std::size_t parallel_rpc = 256;  ///< outgoing calls at once
  Duration blacklist_time = 5s;    ///< for which a node that failed is left alone; then it has a second to answer
  double backoff_rate = 2.0;       ///< by which that time grows with every failure in a row
  std::shared_ptr<Authorizer> authorizer;  ///< of a moderated swarm: outsiders are neither served nor believed
  std::optional<DhtId> node_id;            ///< of an earlier run with the same identity; nullopt: a random one
  bool client_mode = false;                ///< serve nothing, never appear in tables
  bool validate_bootstrap = true;          ///< ask bootstrap peers to call back and compare clocks
  // Bounds against hostile peers (ours).
  std::size_t max_records = 100'000;      ///< per store
  std::size_t max_subkeys = 10'000;       ///< per dictionary
  std::size_t max_value_bytes = 1 << 20;  ///< per value
  /// Bytes of memory that all records together may take, a quarter of it those of the cache; what expires first makes
  /// room. 0: half of HostOptions::memory_budget, 256 MiB at most.
  std::size_t max_storage_bytes = 0;
  std::size_t max_keys_per_request = 1024;  ///< of one call to this node; more is refused
  /// Of one peer: requests, their keys, the entries of dictionaries that it stores, a sixteenth of those that it reads,
  /// the kilobytes of records that go either way, and four for each signature of RSA-2048 to check. They count
  /// together, ten seconds' worth at once; more is refused. Peers of one network may have sixteen times as much. 0: any
  /// number. A refused Dht asks the node again a little later, one call after the other, for wait_timeout at most.
  double max_keys_per_second = 5000;
  // An attacker with many identities in few networks gets no table to himself. A block is an IPv4 /24 or IPv6 /48
  // network of public addresses; private ones and this machine's are not counted. 0: any number.
  std::size_t max_nodes_per_block = 100;           ///< in the routing table
  std::size_t max_nodes_per_block_in_bucket = 10;  ///< half of a bucket: nodes of other blocks are always known, too
  Duration max_record_lifetime = std::chrono::hours(24 * 7);  ///< later expirations are refused from peers
  Duration search_timeout = 60s;                              ///< a search ends then with what it knows
  /// Of a get or a store that is given no deadline, for every thousand keys.
  Duration operation_timeout = 120s;
};

/// Keys and subkeys are any hashable msgpack value; strings in practice. Bin hashes raw.
using Key = msgpack::Value;

/// A value, and when it ends.
struct StoredValue {
  msgpack::Value value;   ///< decoded, without signatures
  double expiration = 0;  ///< Unix seconds
};
/// A draw of some entries of a dictionary, at random.
struct Draw {
  std::size_t most_entries = 0;  ///< drawn by each node for one call; 0: all are sent
  /// Only entries of owners (RsaSignatureValidator) are drawn, and counted in GetResult::held. Python nodes send all.
  bool only_owned = false;
};
/// What a get returns: a plain value, or a dictionary of subkey -> value.
struct GetResult {
  /// See value() and entries().
  std::variant<msgpack::Value, std::vector<std::pair<msgpack::Value, StoredValue>>> content;
  double expiration = 0;  ///< Unix seconds; of a dictionary that of its last entry
  std::size_t held =
      0;  ///< entries of the whole dictionary; more than entries() has only where get_sampled() drew some (Draw)
  /// Whether entries() are some of those that there are.
  bool is_sampled() const { return held > entries().size(); }
  /// Whether the key holds subkeys.
  bool is_dictionary() const { return content.index() == 1; }
  /// Returns the plain value; null for a dictionary.
  const msgpack::Value* value() const { return std::get_if<0>(&content); }
  /// Empty for a plain value.
  const std::vector<std::pair<msgpack::Value, StoredValue>>& entries() const;
};

/// A record to store.
struct StoreItem {
  Key key;                               ///< hashed as DhtId::of() does
  std::optional<msgpack::Value> subkey;  ///< unset: a plain value
  msgpack::Value value;                  ///< max_value_bytes at most, with its signature where it gets one
  double expiration = 0;                 ///< absolute, Unix seconds
};

/// What one node says about one key.
struct NodeReport {
  std::vector<std::pair<DhtId, PeerId>> nearest;  ///< nodes it knows near the key, nearest first
  bool has_record = false;                        ///< not checked by any validator
};

/// A node of hivemind's DHT on a host: it stores, looks up and holds records. Loop thread only.
class Dht {
 public:
  /// `host` must outlive the Dht. Handlers are registered unless client_mode.
  Dht(p2p::Host& host, DhtOptions options = {});
  ~Dht();
  Dht(const Dht&) = delete;

  /// Joins the swarm through peers the host is or can get connected to: pings all, then looks its own id up.
  /// Addresses need /p2p. An empty list starts a new swarm. Error when none answers.
  /// From then on the node finds its way back by itself, through these peers or the nodes it knew, when it lost all
  /// other nodes or when an initial peer is missing: after a sleep of its machine, or a partition of the network.
  Task<Result<>> start(std::vector<Multiaddr> initial_peers);
  /// Leaves: ends all that goes on, and waits for it. Idempotent.
  Task<void> close();

  /// Stores a value under a key, or under one subkey of the key's dictionary, at the num_replicas nodes nearest to the
  /// key. Succeeds when the last of them to answer accepted it. Waits until the deadline at most, half of that for the
  /// search; without one until DhtOptions::operation_timeout has passed.
  /// Errors: Errc::record_refused (an older record than the stored one, for instance), Errc::record_invalid,
  /// Errc::unreachable, Errc::closed, cohive::Errc::timeout; cohive::Errc::invalid_argument for a subkey that is no
  /// key or an expiration in the past, cohive::Errc::limit_exceeded for a value that is above max_value_bytes (a
  /// signature takes 360 bytes) or a subkey above 4,096 bytes.
  Task<Result<>> store(Key key, msgpack::Value value, double expiration, std::optional<Deadline> deadline = {});
  /// Stores under a subkey; otherwise the same.
  Task<Result<>> store(Key key, msgpack::Value subkey, msgpack::Value value, double expiration,
                       std::optional<Deadline> deadline = {});
  /// One result per item, in order.
  Task<std::vector<Result<>>> store_many(std::vector<StoreItem> items, std::optional<Deadline> deadline = {});

  /// Finds the record of a key. latest=false returns the first unexpired hit (often local); latest=true completes the
  /// search. At the deadline (as for a store) the best record found so far is the result.
  /// Errors: Errc::not_found, Errc::unreachable, Errc::closed, cohive::Errc::timeout.
  Task<Result<GetResult>> get(Key key, bool latest = false, std::optional<Deadline> deadline = {});
  /// Finds the record of a key on `replicas` of the nodes that are to hold it, another choice each time: for large
  /// records that many peers read again and again, where each of them asking all replicas would fill the replicas'
  /// lines. Entries of earlier calls that have not expired are kept, so that no single replica can hide one; beyond
  /// max_subkeys the replica that sent most of them makes room. Errors as of get().
  /// \param draw  which entries: each replica draws others for each call (Python nodes send all).
  ///              Those of earlier calls do not count then, and GetResult::held says how many
  ///              there are.
  Task<Result<GetResult>> get_sampled(Key key, std::size_t replicas, Draw draw = {},
                                      std::optional<Deadline> deadline = {});
  /// One result per key, in order.
  Task<std::vector<Result<GetResult>>> get_many(std::vector<Key> keys, bool latest = false,
                                                std::optional<Deadline> deadline = {});

  /// Adds a validator (merged where possible); applies to records from now on.
  void add_validator(std::shared_ptr<RecordValidator> validator);

  /// Calls rpc_ping; returns the peer's node id (nullopt for client-mode peers) or the failure. Without a deadline one
  /// call takes wait_timeout at most, and as long again where the node is busy or has to be dialled.
  Task<Result<std::optional<DhtId>>> ping(PeerId peer, std::optional<Deadline> deadline = {});

  /// Asks one node what it knows about each key; one report per key, or the failure. Waits as ping() does.
  Task<Result<std::vector<NodeReport>>> ask(PeerId peer, std::vector<DhtId> keys,
                                            std::optional<Deadline> deadline = {});
  /// Searches the swarm for the nodes nearest to a key (bucket_size at most, nearest first, without ourselves). At the
  /// deadline, or after search_timeout, returns the nodes known by then.
  /// \param beam  how many of them are asked, and so are there; 0: bucket_size. Farther ones may be named as well
  Task<std::vector<std::pair<DhtId, PeerId>>> nearest_nodes(DhtId key, std::optional<Deadline> deadline = {},
                                                            std::size_t beam = 0);

  /// Writes the state of this node to a file, bit by bit, so that the loop goes on meanwhile and no second copy of the
  /// records is made. Errors: cohive::Errc::io.
  /// \param peers  nodes to name in it where this node knows none; becomes those that it knows, if any
  Task<Result<>> save(std::filesystem::path path, std::vector<SavedPeer>& peers, StateLimits limits = {});
  /// Takes records of an earlier run back, checked as if another node had sent them. Returns how many were kept.
  Task<std::size_t> restore(std::vector<WireRecord> records);

  /// Tells whether the peer did not answer when it was asked last, as a node or otherwise (doubt()), nor has since;
  /// until a minute after it was left alone at most.
  bool doubts(const PeerId& peer) const;
  /// The peer has not answered something else in time: its node is asked right away whether it is there, and until it
  /// answers, searches give it a second.
  void doubt(const PeerId& peer);

  double now() const;  ///< DHT time: Unix seconds
  /// Returns this node's place in the DHT.
  const DhtId& node_id() const noexcept;
  /// Returns the host that the node stands on.
  p2p::Host& host() const noexcept;
  /// Returns the options of the constructor.
  const DhtOptions& options() const noexcept;
  /// Returns the loop of the node.
  Runtime& runtime() const noexcept;

  std::size_t table_size() const;    ///< nodes known, without ourselves
  std::size_t storage_size() const;  ///< keys held for other nodes
  /// Returns how many keys of gets are kept.
  std::size_t cache_size() const;
  /// Known nodes, nearest to ourselves first.
  std::vector<std::pair<DhtId, PeerId>> known_nodes() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::dht

namespace cohive {
using dht::Dht;
using dht::DhtOptions;
}  // namespace cohive
