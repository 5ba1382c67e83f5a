#include "page.hpp"

#include "cohive/core/crypto.hpp"

namespace cohive::p2p {
namespace {

std::string hash_of(std::string_view text) {
  return "'sha256-" + crypto::base64_encode(crypto::sha256(as_bytes(text))) + "'";
}

Page assembled(const PageParts& parts) {
  Page page;
  page.html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>cohive</title>\n"
      "<link rel=\"icon\" href=\"data:,\">\n<style>";
  page.html.append(parts.style).append("</style>\n</head>\n<body>\n").append(parts.body).append("<script>");
  page.html.append(parts.script).append("</script>\n</body>\n</html>\n");
  page.policy = "default-src 'none'; script-src " + hash_of(parts.script) + "; style-src " + hash_of(parts.style) +
                "; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
  return page;
}

}  // namespace

const Page& page() {
  static const Page made = assembled(page_parts());
  return made;
}

}  // namespace cohive::p2p
