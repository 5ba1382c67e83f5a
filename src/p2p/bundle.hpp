// Bundle: the bytes of one connection over several streams, its lanes, each on a connection of its own to one peer.
// Bytes are cut into numbered chunks, which go over whichever lane has room. The receiver puts them in order. What a
// lane carried that ends before the receiver has acknowledged it goes once more over the others.
//   both sides, on any lane -> records:
//     0, number, size, bytes   the chunk of that number, of 1 to kMostChunk bytes; numbers count up from 0
//     1, number                the chunks below that number have been read
//     2, number                so many chunks there are: no more bytes follow
//   (a type is a byte, number and size are big-endian, of 8 and 4 bytes)
// Source: docs/wire/extensions.md, section 15.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "cohive/core/memory_budget.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/transport/network.hpp"
#include "cohive/transport/stream.hpp"

namespace cohive::p2p {

class Bundle final {
 public:
  static constexpr std::size_t kMostChunk = 60 * 1024;  // with its header within one record of Noise
  static constexpr std::uint64_t kWindow = 512;         // chunks that may be on their way, 30 MiB

  /// \param account  of chunks that wait for earlier ones, and of those that the peer has not acknowledged
  Bundle(Runtime& runtime, const PeerId& peer, std::shared_ptr<const MemoryBudget::Account> account);
  ~Bundle();

  /// Carries bytes over this stream, too, from now on. Returns the number of the lane, which is not 0.
  std::uint64_t add_lane(transport::StreamPtr stream);
  /// Sends nothing more over a lane, unless it is the only one, and ends it once all has come.
  void drop_lane(std::uint64_t number);
  /// How many lanes carry what is sent from now on.
  std::size_t lanes() const noexcept;
  /// Set once nothing more goes through.
  Event& ended() noexcept { return ended_; }

  // ---- For the connection whose bytes these are: transport::RawConnection has the rules

  Task<Result<std::size_t>> read_some(MutableBytes into);
  Task<void> wait_readable();
  Task<Result<>> write_all(std::span<const ByteView> buffers);
  void end_writing() noexcept;
  void close() noexcept;
  std::size_t undelivered() const noexcept { return bytes_unacknowledged_; }

 private:
  struct Lane {
    std::uint64_t id;
    transport::StreamPtr stream;
    std::size_t unacknowledged = 0;  ///< chunks
    bool retiring = false;           ///< one of both sides sends nothing more over it
    bool in_ended = false, out_ended = false;
    bool ended = false;
    bool heard = false;                    ///< something has come over it since it was suspected last
    bool acknowledges = false;             ///< an acknowledgement is to go over this very lane
    std::optional<std::uint64_t> again{};  ///< the chunk that is to go over it, too
  };
  using LanePtr = std::shared_ptr<Lane>;
  /// A chunk of ours that the peer has not acknowledged.
  struct Sent {
    Slice bytes;
    std::size_t charged = 0;  ///< of the memory budget
    std::uint64_t lane = 0;   ///< that carries it; 0: none yet
  };

  static Task<void> send(Bundle& bundle, LanePtr lane);
  static Task<void> receive(Bundle& bundle, LanePtr lane);
  static Task<void> acknowledge(Bundle& bundle);
  static Task<void> watch(Bundle& bundle);
  Task<Result<>> receive_record(Lane& lane);
  Task<Result<>> send_chunk(Lane& lane, std::uint64_t number);
  Task<Result<>> send_number(Lane& lane, std::uint8_t type, std::uint64_t number);
  bool has_work(const Lane& lane) const;
  bool take_room(std::size_t size, std::size_t& charged);
  void append_chunk(Slice bytes, std::size_t charged);
  Result<> take_chunk(Lane& lane, std::uint64_t number, std::vector<Slice> bytes, std::size_t& charged);
  Result<> take_acknowledgement(std::uint64_t number);
  Result<> take_end(std::uint64_t number);
  LanePtr find_lane(std::uint64_t id) const;
  LanePtr send_again(std::size_t attempt);
  void acknowledge_over_all();
  void retire(Lane& lane);
  void end_if_done(const LanePtr& lane);
  void end_lane(const LanePtr& lane);
  void fail(Error reason) noexcept;
  Error violation(std::string what) const;

  Runtime& runtime_;
  const PeerId peer_;
  std::vector<LanePtr> lanes_;  // that have not ended
  std::uint64_t next_lane_ = 1;

  // The chunks that this side sends.
  std::deque<Sent> sent_;  // not acknowledged; the first one has the number first_sent_
  std::uint64_t first_sent_ = 0;
  std::set<std::uint64_t> to_send_;  // numbers of sent_ that no lane carries
  std::size_t bytes_unacknowledged_ = 0;
  MemoryBudget::Charge sent_memory_;
  bool end_wanted_ = false, end_sent_ = false;
  Condition sendable_, room_;

  // The chunks that this side receives.
  std::map<std::uint64_t, std::vector<Slice>> ahead_;               // chunks that wait for earlier ones
  std::deque<Slice> ready_;                                         // in order
  std::deque<std::pair<std::uint64_t, std::size_t>> ready_chunks_;  // number, and bytes of it in ready_
  std::uint64_t next_ = 0;                                          // the chunk that comes behind ready_
  std::uint64_t read_ = 0;                                          // chunks that were read
  std::uint64_t acknowledged_ = 0;                                  // of these, what the peer knows
  bool acknowledgement_due_ = false;
  std::optional<std::uint64_t> end_;
  MemoryBudget::Charge memory_;
  Condition readable_, unacknowledged_;

  std::optional<Error> failure_;
  Event ended_;
  TaskGroup tasks_;
};

/// The bytes of a bundle as a connection, to be multiplexed. Both lie between the addresses of the first lane.
class BundleConnection final : public transport::RawConnection {
 public:
  BundleConnection(std::shared_ptr<Bundle> bundle, Multiaddr local, Multiaddr remote)
      : bundle_(std::move(bundle)), local_(std::move(local)), remote_(std::move(remote)) {}
  ~BundleConnection() override { bundle_->close(); }
  Task<Result<std::size_t>> read_some(MutableBytes into) override { return bundle_->read_some(into); }
  Task<void> wait_readable() override { return bundle_->wait_readable(); }
  Task<Result<>> write_all(std::span<const ByteView> buffers) override { return bundle_->write_all(buffers); }
  void end_writing() noexcept override { bundle_->end_writing(); }
  void close() noexcept override { bundle_->close(); }
  const Multiaddr& local_address() const override { return local_; }
  const Multiaddr& remote_address() const override { return remote_; }
  bool has_own_write_timeout() const override { return true; }  // that of each lane's connection
  std::size_t undelivered() const override { return bundle_->undelivered(); }

 private:
  std::shared_ptr<Bundle> bundle_;
  Multiaddr local_, remote_;
};

}  // namespace cohive::p2p
