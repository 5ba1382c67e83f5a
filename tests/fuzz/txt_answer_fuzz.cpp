// Answers of name servers to questions for TXT records.
#include "transport/txt_answer.hpp"

#include <algorithm>

#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(txt_answer)(ByteView input) {
  constexpr std::size_t most = 64 * 1024;  // bytes that the resolver takes
  const ByteView answer = input.first(std::min(input.size(), most));
  const auto texts = transport::texts_of(answer);
  expect(texts.size() <= 32, "the texts of an answer are few");
  std::size_t size = 0;
  for (const auto& text : texts) size += text.size();
  expect(size <= answer.size(), "texts are parts of the answer");
}

}  // namespace cohive::fuzz
