#include "txt_answer.hpp"

#include <arpa/nameser.h>

namespace cohive::transport {
namespace {

constexpr std::size_t kMaxTexts = 32;

}  // namespace

std::vector<std::string> texts_of(ByteView answer) {
  ns_msg message;
  if (ns_initparse(answer.data(), static_cast<int>(answer.size()), &message) != 0) return {};
  std::vector<std::string> texts;
  for (int i = 0; i < ns_msg_count(message, ns_s_an) && texts.size() < kMaxTexts; ++i) {
    ns_rr record;
    if (ns_parserr(&message, ns_s_an, i, &record) != 0 || ns_rr_type(record) != ns_t_txt) continue;
    std::string text;
    const std::uint8_t* at = ns_rr_rdata(record);
    const std::uint8_t* end = at + ns_rr_rdlen(record);
    while (at < end && at + 1 + *at <= end) {  // character strings, each with its length
      text.append(reinterpret_cast<const char*>(at + 1), *at);
      at += 1 + *at;
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace cohive::transport
