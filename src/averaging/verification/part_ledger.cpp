#include "part_ledger.hpp"

#include <algorithm>

#include "averaging/wire.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kShowing = 120s;       // a part: what 100 members sent of it, over four megabits a second
constexpr std::size_t kAlwaysShown = 16;  // parts, to a member
constexpr double kTimesShare = 8;         // of the parts, beyond them: members choose their shares, and hear complaints

}  // namespace

AuditLog::AuditLog(Runtime& runtime, std::shared_ptr<const Group> group, std::vector<std::size_t> lengths, double share)
    : runtime_(runtime),
      group_(std::move(group)),
      lengths_(std::move(lengths)),
      most_shown_(kAlwaysShown + static_cast<std::size_t>(kTimesShare * share * static_cast<double>(lengths_.size()))),
      accounts_(lengths_.size()) {
  for (auto& account : accounts_) account = std::make_shared<Account>();
}

/// Leaves what the transcript says.
void AuditLog::drop_values(Contribution& contribution) {
  contribution.part.record = Slice();
  contribution.part.buffer = {};
  contribution.commitment.clear();
}

void AuditLog::add(std::size_t part, std::size_t sender, Contribution contribution) {
  if (forgotten_) drop_values(contribution);
  accounts_[part]->contributions.insert_or_assign(sender, std::move(contribution));
}

/// A part that is being shown keeps its values until that is done.
void AuditLog::forget() {
  forgotten_ = true;
  for (auto& account : accounts_) {
    if (account.use_count() > 1) account = std::make_shared<Account>(*account);
    for (auto& [sender, contribution] : account->contributions) drop_values(contribution);
  }
}

const Digest& AuditLog::close(std::size_t part, const std::vector<std::size_t>& order) {
  Account& account = *accounts_[part];
  if (account.closed) return *account.closed;
  account.order = order;
  const auto counted = [&](std::size_t sender) { return std::ranges::find(order, sender) != order.end(); };
  std::erase_if(account.contributions, [&](const auto& one) { return !counted(one.first); });
  Transcript transcript;
  for (const std::size_t sender : order) {
    const Contribution& one = account.contributions.at(sender);
    transcript.push_back({sender, one.weight, static_cast<int>(one.part.codec), one.digest});
  }
  account.transcript = encode_transcript(transcript);
  return account.closed.emplace(crypto::sha256(as_bytes(account.transcript)));
}

Task<Result<>> AuditLog::show(std::shared_ptr<AuditLog> self, rpc::ServerStream& stream, std::size_t part) {
  const auto member = self->group_->index_of(stream.peer());
  if (!member || self->forgotten_ || part >= self->accounts_.size() || !self->accounts_[part]->closed)
    co_return Error(Errc::bad_partition, stream.peer(), "a part that there is nothing to show of");
  auto& shown = self->shown_[*member];
  if (shown.size() == self->most_shown_) co_return Error(cohive::Errc::limit_exceeded, stream.peer(), "parts shown");
  if (!shown.insert(part).second) co_return Error(Errc::bad_partition, stream.peer(), "a part that was shown before");
  const std::shared_ptr<const Account> account = self->accounts_[part];
  const std::size_t length = self->lengths_[part];
  const Deadline end = self->runtime_.after(kShowing);
  self.reset();  // a slow reader keeps no part but this one
  CO_TRY(co_await stream.send(as_bytes(account->transcript), end));
  for (const std::size_t sender : account->order)
    CO_TRY(co_await send(stream, account->contributions.at(sender), length, end));
  co_return ok();
}

Task<Result<>> AuditLog::send(rpc::ServerStream& stream, const Contribution& contribution, std::size_t length,
                              Deadline end) {
  const EncodedPart& part = contribution.part;
  Envelope envelope = envelope_part(0, {}, part.buffer.size(), length, static_cast<int>(part.codec), 0);
  append_commitment(envelope, contribution.commitment);
  const ByteView pieces[] = {as_bytes(envelope.head), part.buffer, as_bytes(envelope.tail)};
  co_return co_await stream.send(std::span<const ByteView>(pieces), end);
}

}  // namespace cohive::averaging
