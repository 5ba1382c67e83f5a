// Identify: on every new connection each side asks the other one what it is.
//   asker opens a stream and sends nothing;  answerer -> one Identify message, FIN.
//   push: the sender opens a stream, sends an Identify message, FIN.
// Source: docs/wire/libp2p.md, sections 5.1 and 5.2.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohive/proto/p2p.pb.h"
#include "connection_table.hpp"
#include "own_addresses.hpp"

namespace cohive::p2p {

inline const std::string kIdentifyProtocol = "/ipfs/id/1.0.0";
inline const std::string kIdentifyPushProtocol = "/ipfs/id/push/1.0.0";

/// Reads the message of a peer, which may come in parts.
/// \param charge  takes the memory for the parts while they are read
Task<Result<proto::Identify>> read_identify(transport::Stream& stream, Deadline deadline,
                                            MemoryBudget::Charge charge = {});

class Identify {
 public:
  Identify(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, OwnAddresses& own);
  void close() { tasks_.cancel(); }

  /// A connected peer has described itself, at first or anew.
  Signal<const PeerId&>& described() noexcept { return described_; }
  /// A peer has reported the address from which one of our connections comes. It may be any address.
  Signal<const ConnectionEntryPtr&, const Multiaddr&>& observed() noexcept { return observed_; }

 private:
  static Task<void> ask(Identify& identify, ConnectionEntryPtr entry);
  Task<void> answer(transport::StreamPtr stream);
  Task<void> receive_push(transport::StreamPtr stream);
  void push_soon();
  static Task<void> push_to_all(Identify& identify);
  static Task<void> push_to(Identify& identify, PeerId peer);
  std::string message_for(const Multiaddr& remote);
  const std::string& signed_record(const std::vector<Multiaddr>& own);
  /// Tells whether a message is all that a peer says of itself, or what has changed alone.
  enum class Said { all, changes };
  Result<> learn(ConnectedPeer& peer, const PeerId& id, const Multiaddr& remote, const proto::Identify& message,
                 Said said);
  Protocols kept_of(const proto::Identify& message) const;
  void report_observed(const PeerId& peer);
  MemoryBudget::Charge charge_for(const transport::Stream& stream) const {
    return MemoryBudget::Charge(self_.memory.account(stream.peer(), stream.remote_address()));
  }
  bool may_push(ConnectedPeer& peer) const;
  std::shared_ptr<const Protocols> shared(Protocols protocols);

  Self& self_;
  Handlers& handlers_;
  ConnectionTable& table_;
  AddressBook& book_;
  OwnAddresses& own_;
  Signal<const PeerId&> described_;
  Signal<const ConnectionEntryPtr&, const Multiaddr&> observed_;
  std::uint64_t record_number_ = 0;
  std::string record_;  ///< our signed peer record of this number for these addresses
  std::vector<Multiaddr> record_addresses_;
  std::vector<std::weak_ptr<const Protocols>> protocol_sets_;  ///< most peers serve the same
  bool push_scheduled_ = false;
  std::vector<Subscription> subscriptions_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
