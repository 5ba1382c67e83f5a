// What one owner commonly has whole: tables of peers give the addresses of one block a share only, so that an attacker
// needs many blocks instead of many identities.
#pragma once

#include "cohive/core/network_of.hpp"

namespace cohive::p2p {

using cohive::network_block;

}  // namespace cohive::p2p
