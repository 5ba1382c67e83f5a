// The three calls of hivemind's DHT, both sides: rpc_ping, rpc_store, rpc_find.
// Source: hivemind wire spec, sections 1.1 and 3.7.
#pragma once

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/metrics.hpp"
#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "composite_validator.hpp"
#include "routing_table.hpp"
#include "storage.hpp"

namespace cohive::dht {

inline const std::string kRegularTag("\xc0", 1);  // msgpack nil: an ordinary value
inline const std::string kDictionaryTag;          // a whole dictionary

/// What one node answers about one key.
struct Finding {
  std::optional<StoredRecord> record;
  std::vector<NodeAddress> nearest;
};

/// One record to send to a replica.
struct OutgoingRecord {
  DhtId key;
  std::string tag;
  std::string value;
  double expiration = 0;
  bool in_cache = false;
};

class Protocol {
 public:
  Protocol(p2p::Host& host, const DhtOptions& options, DhtId node_id, DhtMetrics& metrics);

  Task<Result<std::optional<DhtId>>> ping(PeerId peer, bool validate, bool strict);
  Task<Result<std::vector<bool>>> store(PeerId peer, std::vector<OutgoingRecord> records);
  Task<Result<std::vector<Finding>>> find(PeerId peer, std::vector<DhtId> keys);

  /// Stores into our own storage, as if a peer had sent it (validated, unless it is ours and just signed).
  bool store_locally(const OutgoingRecord& record);

  double now() const { return runtime.wall_time(); }
  bool valid(const DhtId& key, const std::string& tag, const std::string& value, double expiration) const;

  p2p::Host& host;
  Runtime& runtime;
  const DhtOptions& options;
  DhtId node_id;
  DhtMetrics& metrics;
  RoutingTable table;
  Storage storage, cache;
  CompositeValidator validators;

 private:
  void serve();
  Task<Result<std::string>> on_ping(PeerId caller, std::string request);
  Task<Result<std::string>> on_store(PeerId caller, std::string request);
  Task<Result<std::string>> on_find(PeerId caller, std::string request);
  void fill(proto::NodeInfo* info) const;
  Task<Result<std::string>> call(PeerId peer, const char* method, std::string request);
  /// A node made itself known by a request or a reply.
  void heard_from(const std::string& node_id, const PeerId& peer);
  void failed(const PeerId& peer) { table.remove(peer); }
  static Task<void> check_old_node(Protocol& self, NodeAddress node);
  static Task<void> hand_over(Protocol& self, NodeAddress newcomer);
  bool accept(const DhtId& key, const std::string& tag, const std::string& value, double expiration, bool in_cache);
  std::optional<StoredRecord> read_record(const DhtId& key, const proto::FindResult& result);

  Semaphore in_flight_;
  rpc::Server server_;
  TaskGroup tasks_;
};

}  // namespace cohive::dht
