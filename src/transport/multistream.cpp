// multistream-select 1.0: agrees on a protocol at the start of a stream.
//   both: header;  initiator: proposal;  responder: the same token, or "na"; repeated until agreed.
// Source: docs/wire/libp2p.md, section 2.
#include "cohive/transport/multistream.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/try.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::transport {
namespace {

constexpr std::string_view kHeader = "/multistream/1.0.0";
constexpr std::string_view kRefusal = "na";

void append_token(Bytes& out, std::string_view token) {
  append_varint(out, token.size() + 1);
  out.insert(out.end(), token.begin(), token.end());
  out.push_back('\n');
}

Task<Result<std::string>> read_token(StreamReader& reader, const Stream& stream, Deadline deadline) {
  auto message = co_await reader.read_message(kMaxProtocolLength, deadline);
  if (!message) co_return message.error().with_context("protocol negotiation");
  if (!*message) co_return Error(cohive::Errc::end_of_stream, stream.peer(), "protocol negotiation");
  if ((*message)->empty() || (*message)->back() != '\n')
    co_return Error(Errc::negotiation_failed, stream.peer(), "token without a newline");
  (*message)->pop_back();
  co_return to_string(**message);
}

Task<Result<>> expect_header(StreamReader& reader, const Stream& stream, Deadline deadline) {
  CO_TRY(auto header, co_await read_token(reader, stream, deadline));
  if (header != kHeader)
    co_return Error(Errc::negotiation_failed, stream.peer(), "wrong header " + log::quoted(header, 60));
  co_return ok();
}

Error not_supported(const Stream& stream, const std::string& protocol) {
  return Error(Errc::protocol_not_supported, stream.peer(), log::quoted(protocol));
}

/// Carries header and proposal in front of the first write, and checks the answer before the first read.
class LazyStream final : public Stream {
 public:
  LazyStream(StreamPtr inner, std::string protocol)
      : inner_(std::move(inner)), proposed_(inner_->runtime(), "protocol proposal") {
    set_protocol(std::move(protocol));
  }

  Task<Result<Slice>> read(Deadline deadline) override {
    if (state_ == State::fresh) {
      CO_TRY(co_await propose({}, deadline));
    }
    if (!answered_) {
      if (!failure_) {
        auto answer = co_await check_answer(deadline);
        if (!answer && answer.error() == cohive::Errc::timeout) co_return answer.error();  // it may come yet
        if (!answer) failure_ = answer.error();
      }
      if (failure_) co_return *failure_;
    }
    co_return co_await inner_->read(deadline);
  }
  void unread(Slice bytes) override { inner_->unread(std::move(bytes)); }
  void expect(Slice region) override {
    if (answered_) inner_->expect(std::move(region));
  }

  Task<Result<>> write(std::span<const ByteView> buffers, Deadline deadline) override {
    if (state_ == State::fresh) co_return co_await propose(buffers, deadline);
    if (state_ == State::proposing)
      if (!co_await proposed_.wait(deadline)) co_return Error(cohive::Errc::timeout, peer(), "writing");
    if (state_ == State::failed) co_return *failure_;
    co_return co_await inner_->write(buffers, deadline);
  }
  void close_write() noexcept override {
    if (state_ == State::proposed) {
      inner_->close_write();
    } else {
      close_after_proposal_ = true;  // the end must not overtake the proposal
    }
  }
  void limit_window(std::size_t most) override { inner_->limit_window(most); }
  void hint_bulk_receive() override { inner_->hint_bulk_receive(); }
  void reset() noexcept override { inner_->reset(); }
  const PeerId& peer() const override { return inner_->peer(); }
  const Multiaddr& remote_address() const override { return inner_->remote_address(); }
  Runtime& runtime() const override { return inner_->runtime(); }
  bool readable() const override { return failure_ || (answered_ && inner_->readable()); }
  std::uint64_t receive_quota() const override { return inner_->receive_quota(); }

 private:
  enum class State { fresh, proposing, proposed, failed };

  Task<Result<>> propose(std::span<const ByteView> payload, Deadline deadline) {
    state_ = State::proposing;
    Bytes proposal;
    append_token(proposal, kHeader);
    append_token(proposal, protocol());
    std::vector<ByteView> all{proposal};
    all.insert(all.end(), payload.begin(), payload.end());
    auto sent = co_await inner_->write(all, deadline);
    state_ = sent ? State::proposed : State::failed;
    if (!sent) failure_ = sent.error();  // what is written behind half a proposal would be taken for the rest of it
    proposed_.set();
    if (close_after_proposal_) inner_->close_write();
    co_return sent;
  }

  Task<Result<>> check_answer(Deadline deadline) {
    if (!answer_) answer_.emplace(*inner_);
    if (!header_seen_) CO_TRY(co_await expect_header(*answer_, *inner_, deadline));
    header_seen_ = true;
    CO_TRY(auto answer, co_await read_token(*answer_, *inner_, deadline));
    if (answer != protocol()) co_return not_supported(*inner_, protocol());
    answer_.reset();  // what came behind it is the stream's again
    answered_ = true;
    co_return ok();
  }

  StreamPtr inner_;
  std::optional<StreamReader> answer_;  // while it is being received
  bool header_seen_ = false;
  Event proposed_;
  State state_ = State::fresh;
  bool close_after_proposal_ = false;
  bool answered_ = false;
  std::optional<Error> failure_;
};

}  // namespace

Task<Result<std::string>> select_one_of(Stream& stream, std::vector<std::string> protocols, Deadline deadline) {
  StreamReader reader(stream);
  bool first = true;
  for (const auto& protocol : protocols) {
    Bytes proposal;
    if (first) append_token(proposal, kHeader);
    append_token(proposal, protocol);
    CO_TRY(co_await stream.write(proposal, deadline));
    if (first) {
      CO_TRY(co_await expect_header(reader, stream, deadline));
      first = false;
    }
    CO_TRY(auto answer, co_await read_token(reader, stream, deadline));
    if (answer == protocol) co_return protocol;
    if (answer != kRefusal)
      co_return Error(Errc::negotiation_failed, stream.peer(), "unexpected answer " + log::quoted(answer, 60));
  }
  co_return not_supported(stream, protocols.empty() ? std::string() : protocols.front());
}

StreamPtr select_lazily(StreamPtr stream, std::string protocol) {
  return std::make_unique<LazyStream>(std::move(stream), std::move(protocol));
}

Task<Result<std::string>> answer_selection(Stream& stream, std::function<bool(std::string_view)> supported,
                                           Deadline deadline) {
  Bytes out;
  append_token(out, kHeader);
  CO_TRY(co_await stream.write(out, deadline));
  StreamReader reader(stream);
  CO_TRY(co_await expect_header(reader, stream, deadline));
  for (int proposals = 0; proposals < kMaxProposals; ++proposals) {
    CO_TRY(auto proposal, co_await read_token(reader, stream, deadline));
    const bool accepted = supported(proposal);
    out.clear();
    append_token(out, accepted ? std::string_view(proposal) : kRefusal);
    CO_TRY(co_await stream.write(out, deadline));
    if (accepted) co_return std::move(proposal);
  }
  co_return Error(Errc::negotiation_failed, stream.peer(), "too many proposals");
}

}  // namespace cohive::transport
