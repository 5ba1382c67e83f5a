// Reads what a name server answers a question for TXT records.
#pragma once

#include <string>
#include <vector>

#include "cohive/core/bytes.hpp"

namespace cohive::transport {

/// Returns the texts of the TXT records of a DNS answer, of 32 records at most; none when it is malformed or was cut.
std::vector<std::string> texts_of(ByteView answer);

}  // namespace cohive::transport
