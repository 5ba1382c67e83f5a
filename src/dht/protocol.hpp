// The three calls of hivemind's DHT, both sides: rpc_ping, rpc_store, rpc_find; and what every call teaches about the
// swarm. The calling side is in protocol.cpp, the serving side in protocol_server.cpp, and what becomes of nodes in
// protocol_nodes.cpp.
// Source: docs/wire/hivemind.md, sections 1.1, 3.3 and 3.7.
#pragma once

#include "batcher.hpp"
#include "blacklist.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/metrics.hpp"
#include "cohive/dht/state.hpp"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/rpc.hpp"
#include "composite_validator.hpp"
#include "core/detail/low_priority_thread.hpp"
#include "detail/rate_limiter.hpp"
#include "find_reply.hpp"
#include "routing_table.hpp"
#include "signed_calls.hpp"
#include "storage.hpp"

namespace cohive::proto {
class NodeInfo;
}  // namespace cohive::proto

namespace cohive::dht {

/// Entries of dictionaries that are decoded, stored or merged in one turn of the loop: about a millisecond.
inline constexpr std::size_t kEntriesPerTurn = 128;
/// Records that are looked at in one turn: well below a millisecond.
inline constexpr std::size_t kRecordsPerTurn = 256;

/// What one node answers about one key. The record is well-formed but not validated.
struct Finding {
  std::optional<StoredRecord> record;
  std::size_t entries = 0;  ///< that the node says its dictionary has; 0: it is no dictionary
  std::vector<NodeEntry> nearest;
  std::optional<DhtId> node = std::nullopt;  ///< the id that the node has told with its answer
};

/// Returns the bytes of a record in a request.
inline std::size_t size_of(const WireRecord& record) {
  return record.value.size() + record.tag.size();
}
/// Makes a stored record one to be sent whole.
WireRecord outgoing(const DhtId& key, const StoredRecord& record, bool in_cache);

class Protocol {
 public:
  Protocol(p2p::Host& host, const DhtOptions& options, DhtId node_id, DhtMetrics& metrics);
  ~Protocol();

  /// \param validate  ask the peer to call back, and compare clocks: a mismatch is an error
  Task<Result<std::optional<DhtId>>> ping(PeerId peer, bool validate);
  /// One answer per record.
  Task<Result<std::vector<bool>>> store(PeerId peer, std::vector<WireRecord> records);
  /// One finding per key.
  /// \param referrer  the node that named the peer, and will know where it is; empty: none
  /// \param draw  of each dictionary, by the peer
  Task<Result<std::vector<Finding>>> find(PeerId peer, std::vector<DhtId> keys, PeerId referrer = {}, Draw draw = {});
  /// Stores here, validated as if another node had sent it.
  /// \param from  whose records they count as; empty: ours
  /// \param charged  whether `from` is a caller that owes for the work
  Task<std::vector<bool>> store_locally(std::vector<WireRecord> records, PeerId from = {}, bool charged = false);
  void close();

  void add_validator(std::shared_ptr<RecordValidator> validator);
  const CompositeValidator& validators() const { return *validators_; }
  /// Many records leave the loop, as a signature takes tens of microseconds to check; they never take the place of this
  /// program's own work in the pool of the runtime.
  Task<std::vector<bool>> validate(std::vector<Record> records);
  /// Returns the records with signatures in their values.
  Task<std::vector<Record>> sign(std::vector<Record> records);

  /// Finds out, beside everything else, whether a node that failed answers again.
  void check_again(const PeerId& peer);

  double now() const { return runtime.wall_time(); }
  /// The keys of a store, what expires last first. All at once: a record that is renewed while one goes through them
  /// changes its place.
  Task<std::vector<DhtId>> all_keys(const Storage& store);
  /// The dictionary that is stored, else the newer of what storage and cache hold; null when neither does.
  const StoredRecord* held(const DhtId& key);
  void update_gauges();

  p2p::Host& host;
  Runtime& runtime;
  const DhtOptions& options;
  const DhtId node_id;
  DhtMetrics& metrics;
  RoutingTable table;
  Condition alone;            ///< notified when the last node of the table was lost
  std::deque<PeerId> former;  ///< nodes that were lost, the latest last; bounded
  Storage storage, cache;
  Blacklist failing;  ///< nodes that searches leave alone for a while

  /// One thing to store: a regular value or an entry of a dictionary.
  struct Incoming {
    std::size_t item = 0;  ///< which record of the request it belongs to
    DhtId key;
    std::optional<Subkey> subkey;
    std::string value;
    double expiration = 0;
    bool in_cache = false;
    bool whole = false;  ///< it came with all others of its dictionary, from a node that keeps them
  };

 private:
  // protocol_server.cpp
  void serve();
  using Handler = Task<Result<std::string>> (Protocol::*)(PeerId, std::string);
  /// Runs the handler if the caller may ask, and signs its reply.
  Task<Result<std::string>> authorized(Handler handler, PeerId caller, std::string bytes);
  Task<Result<std::string>> on_ping(PeerId caller, std::string bytes);
  Task<Result<std::string>> on_store(PeerId caller, std::string bytes);
  Task<Result<std::string>> on_find(PeerId caller, std::string bytes);

  /// False when the caller has asked for too much lately.
  bool allows(const PeerId& caller, std::size_t cost);
  std::string network_of_caller(const PeerId& caller) const;
  /// Takes what a request has turned out to cost from what the caller may ask for.
  void charge(const PeerId& caller, std::size_t cost);
  /// Records of one request, as far as they have been taken apart.
  struct Storing {
    PeerId from;
    bool charged = false;
    std::vector<bool> ok;
    std::vector<Incoming> chunk = {};
    std::size_t bytes = 0;  // of the chunk
    bool begun = false;     // a chunk was stored
  };
  Task<void> take_apart(Storing& storing, WireRecord record, std::size_t item);
  Task<void> store_chunk(Storing& storing);
  Task<std::vector<bool>> validate_for(PeerId caller, std::vector<Record> records);
  /// Whether one more request of the caller that wants signatures checked can be taken on.
  bool may_check(const PeerId& caller) const;
  struct FindAnswer;
  FindAnswer answer_about(const DhtId& key, Draw draw, std::size_t room);

  void fill(proto::NodeInfo& info) const;
  /// A busy node is asked again; one that fails is lost.
  Task<Result<std::string>> call(PeerId peer, const char* method, std::string request, const CallMetrics& counters);
  Task<Result<std::string>> call_once(Semaphore::Units slot, PeerId peer, const char* method, std::string request,
                                      const CallMetrics& counters);
  Task<Result<std::string>> call_in_turn(PeerId peer, const char* method, std::string request,
                                         const CallMetrics& counters);
  /// A turn to ping a peer that has called us, which counts for its network.
  struct CallBack {
    CallBack(Protocol& protocol, std::string of);
    CallBack(CallBack&& other) noexcept
        : network(std::move(other.network)), units(std::move(other.units)), self(std::exchange(other.self, nullptr)) {}
    ~CallBack();
    std::string network;
    Semaphore::Units units;
    Protocol* self;
  };
  Task<std::optional<CallBack>> turn_to_call_back(PeerId peer, Deadline deadline);
  /// Whether the peer is a member, and knows that we are one.
  Task<Result<>> prove(PeerId peer, bool calls_us, Deadline deadline);
  Task<Result<std::vector<bool>>> send_store(PeerId peer, std::vector<WireRecord> records);
  Task<Result<std::vector<Finding>>> send_find(PeerId peer, std::vector<DhtId> keys, Draw draw = {},
                                               std::optional<Deadline> until = {});
  /// The same for keys of several searches, which may be looking for the same ones.
  Task<Result<std::vector<Finding>>> send_joined_find(PeerId peer, std::vector<DhtId> keys);
  /// \param from  the node that has sent it  \param draw  what it was asked for
  Task<Finding> read_finding(FindResultView result, PeerId from, Draw draw) const;
  Task<void> leave_out_costly(const std::vector<DhtId>& keys, std::vector<Finding>& findings) const;

  // protocol_nodes.cpp
  /// A node made itself known by a request or a reply.
  void heard_from(std::string_view node_id, const PeerId& peer);
  /// The same by a request.
  void called_by(std::string_view node_id, const PeerId& caller);
  Task<void> find_out_whether_it_answers(PeerId peer);
  void lost(const PeerId& peer);
  /// A reply that cannot be.
  Error malformed(const PeerId& peer, const char* method);
  Task<void> check_old_node(NodeEntry node);
  Task<void> hand_records_over();
  bool is_new(const PeerId& peer) const;
  struct HandOver;
  Task<void> hand_over_batch(std::shared_ptr<HandOver> to);
  static Task<void> send_batch(Protocol& self, std::shared_ptr<HandOver> to, std::vector<WireRecord> records,
                               Semaphore::Units turn);
  Task<void> revalidate();

  /// Calls to one busy node.
  struct Queue {
    explicit Queue(Runtime& runtime) : turn(runtime, 1, "a turn at a busy DHT node") {}
    Semaphore turn;
    std::size_t calls = 0;
  };

  std::shared_ptr<const CompositeValidator> validators_ = std::make_shared<CompositeValidator>();
  std::vector<NodeEntry> newcomers_;  // to be given records
  bool handing_over_ = false;
  Semaphore hand_overs_;  // batches on their way
  std::unordered_map<PeerId, TimePoint> handed_over_;
  Semaphore slots_;
  Semaphore call_backs_;                                       // for pings that ask for one
  std::unordered_map<std::string, std::size_t> calling_back_;  // by network
  Condition called_back_one_;
  std::unordered_set<PeerId> called_back_;
  std::unordered_set<PeerId> checked_again_;  // right now
  std::unordered_map<PeerId, Queue> busy_;    // nodes that said so, with the calls that wait for them
  Blacklist overloaded_;                      // nodes that went on saying so
  Blacklist strangers_;                       // peers that could not prove to be members
  std::unordered_set<PeerId> proving_;        // right now
  Condition proven_;
  RateLimiter rates_;
  TokenBucket checks_inline_;                              // signatures that the loop checks itself
  std::unordered_map<std::string, std::size_t> checking_;  // by network: what checks for callers cost that wait
  std::size_t checking_all_ = 0;
  std::optional<SignedCalls> signed_calls_;  // in a moderated swarm
  Subscription members_only_;                // the same
  std::optional<rpc::Server> server_;
  TaskGroup tasks_;
  const BatchLimits store_limits_;
  Batcher<WireRecord, bool> stores_;
  Batcher<DhtId, Finding> finds_;
  LowPriorityThread checks_;
};

}  // namespace cohive::dht
