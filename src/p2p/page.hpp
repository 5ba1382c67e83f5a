// The live page, as the build has embedded it (src/p2p/page, cmake/EmbedPage.cmake).
#pragma once

#include <string>
#include <string_view>

namespace cohive::p2p {

struct PageParts {
  std::string_view body, style, script;
};
const PageParts& page_parts();

/// The whole document, and the policy under which a browser runs exactly its script and nothing else.
struct Page {
  std::string html, policy;
};
const Page& page();

}  // namespace cohive::p2p
