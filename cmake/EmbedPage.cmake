# cmake -DPAGE=FOLDER -DOUT=FILE -P EmbedPage.cmake: writes the page of p2p/metrics_server.hpp, which is body.html, page.css
# and one script of the .js files, as arrays of a C++ source.
set(text "// Generated from ${PAGE}.\n#include \"p2p/page.hpp\"\n\nnamespace cohive::p2p {\nnamespace {\n")
set(script "'use strict';\n(() => {\n")
foreach(part draw.js swarm.js page.js)
  file(READ "${PAGE}/${part}" source)
  string(APPEND script "${source}")
endforeach()
file(WRITE "${OUT}.js" "${script}})();\n")
foreach(part "${PAGE}/body.html" "${PAGE}/page.css" "${OUT}.js")
  string(REGEX REPLACE "^.*\\.([a-z]+)$" "page_\\1" name "${part}")
  file(READ "${part}" bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "constexpr char ${name}[] = {\n${bytes}\n};\n")
endforeach()
string(APPEND text "}  // namespace\n
const PageParts& page_parts() {
  static constexpr PageParts parts{{page_html, sizeof page_html}, {page_css, sizeof page_css}, {page_js, sizeof page_js}};
  return parts;
}\n\n}  // namespace cohive::p2p\n")
file(WRITE "${OUT}" "${text}")
