/// \file
/// MemoryBudget: how much memory peers may fill, all of them together. Loop thread only.
///
/// Every buffer that a peer fills is charged to the peer, and to the network that it comes from: received bytes that
/// no reader has taken, requests, replies that are on their way. Above seven eighths of the budget the network that
/// holds most gets no more, and the peer of it that holds most is cut off, so that other peers find room. Identities
/// cost nothing, networks do: an attacker with many identities in one network has the share of one network.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "cohive/core/network_of.hpp"
#include "cohive/core/peer_id.hpp"

namespace cohive {

/// An eighth of the memory that the machine, or the container, lets this process have; 128 MiB at least.
std::size_t default_memory_budget();

/// Counts the memory that each peer fills and cuts off the greediest one when all together fill too much. Loop thread
/// only.
class MemoryBudget {
 public:
  /// \param total bytes of all peers together.
  explicit MemoryBudget(std::size_t total) : state_(std::make_shared<State>(total)) {}
  /// Sets what cuts a peer off: soon, not in the call.
  void set_cut(std::function<void(const PeerId&)> cut) { state_->cut = std::move(cut); }

 private:
  struct Network {
    std::size_t bytes = 0;
    std::unordered_map<PeerId, std::size_t> peers;
  };
  struct State {
    explicit State(std::size_t most) : total(most) {}
    const std::size_t total;
    std::size_t held = 0, highest = 0, refused = 0, cut_off = 0;
    std::unordered_map<std::string, Network> networks;
    std::function<void(const PeerId&)> cut;
  };

 public:
  class Charge;
  /// The holder that bytes are charged to. Cheap to copy; may outlive the budget.
  class Account {
   public:
    Account() = default;

   private:
    friend class MemoryBudget;
    friend class Charge;
    Account(std::shared_ptr<State> state, const PeerId& peer, std::string network)
        : state_(std::move(state)), peer_(peer), network_(std::move(network)) {}
    bool add(std::size_t bytes) const;
    bool has_spare(std::size_t bytes) const;
    void remove(std::size_t bytes) const;
    void cut_largest(const std::string& network) const;
    std::shared_ptr<State> state_;  // null: nothing is counted
    PeerId peer_;
    std::string network_;
  };
  /// Returns a holder for what the peer fills over a connection from `remote`.
  std::shared_ptr<const Account> account(const PeerId& peer, const Multiaddr& remote) const;

  /// Bytes that are charged while it lives.
  class [[nodiscard]] Charge {
   public:
    Charge() = default;
    /// Charges nothing yet.
    explicit Charge(std::shared_ptr<const Account> account) : account_(std::move(account)) {}
    Charge(Charge&& other) noexcept : account_(std::move(other.account_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Charge& operator=(Charge&& other) noexcept {
      release();
      account_ = std::move(other.account_);
      bytes_ = std::exchange(other.bytes_, 0);
      return *this;
    }
    ~Charge() { release(); }
    /// False, and nothing is charged, when the budget has no room for them.
    [[nodiscard]] bool add(std::size_t bytes);
    /// The same for what may wait, as what is to be sent: false also when less than half of the budget would be left,
    /// and the network has its fair share. So peers that are slow to take things cost no other one its connection.
    [[nodiscard]] bool add_spare(std::size_t bytes) { return (!account_ || account_->has_spare(bytes)) && add(bytes); }
    /// Gives so many of the charged bytes back.
    void subtract(std::size_t bytes);
    /// Gives all of them back.
    void release() { subtract(bytes_); }

   private:
    std::shared_ptr<const Account> account_;
    std::size_t bytes_ = 0;
  };

  /// Returns the bytes of the constructor.
  std::size_t total() const noexcept { return state_->total; }
  /// Returns the bytes that are charged now.
  std::size_t held() const noexcept { return state_->held; }
  /// The most that was ever held.
  std::size_t highest() const noexcept { return state_->highest; }
  /// How often there was no room, and how many peers were cut off.
  std::size_t refused() const noexcept { return state_->refused; }
  /// Returns how many networks hold something now.
  std::size_t networks() const noexcept { return state_->networks.size(); }
  /// Returns how many peers were cut off.
  std::size_t cut_off() const noexcept { return state_->cut_off; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace cohive
