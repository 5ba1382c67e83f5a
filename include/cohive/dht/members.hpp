/// \file
/// Two ready authorizers: of peers that share a secret, and of peers that a file lists. Either binds a token to the
/// peer that shows it. Source: docs/wire/extensions.md, section 9. Loop thread only.
#pragma once

#include <filesystem>

#include "cohive/core/keys.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/dht/authorization.hpp"

namespace cohive::dht {

inline constexpr std::size_t kLeastSecret = 16;  ///< characters

/// Returns the authorizer of a swarm whose members know the secret, which takes a tenth of a second to prepare.
/// \param key  signs this node's messages
/// Errors: cohive::Errc::invalid_argument for a secret of fewer than kLeastSecret characters.
Result<std::shared_ptr<Authorizer>> members_by_secret(Runtime& runtime, std::string_view secret, PeerId self,
                                                      std::shared_ptr<const RsaSignatureValidator> key);

/// Returns the authorizer of a swarm whose members are listed in a file: a peer id on each line, and whatever text
/// behind it; lines that begin with # do not count. The file is read again when it has changed; while it cannot be
/// read, or a line of it is no peer id, the last good list counts. Errors: cohive::Errc::io, cohive::Errc::malformed.
Result<std::shared_ptr<Authorizer>> members_by_list(Runtime& runtime, std::filesystem::path list, KeyPair identity,
                                                    std::shared_ptr<const RsaSignatureValidator> key);

/// Reads a secret from a file that only its owner can read, without the white space around it.
/// Errors: cohive::Errc::io.
Result<std::string> read_secret(const std::filesystem::path& path);

/// How a program is told the members of its swarm; both empty: the swarm is open.
struct MembersOptions {
  std::string secret_file;   ///< members are the peers that know the secret in this file, which only its owner can read
  std::string members_file;  ///< members are the peers whose ids are in this one
};

/// Tells whether the files that the options name can be read, before any work is begun. Errors: those of
/// make_authorizer.
Result<> check_members(const MembersOptions& options);

/// Returns the authorizer that the options ask for; null for an open swarm.
/// Errors: cohive::Errc::invalid_argument for both at once, and those above.
Result<std::shared_ptr<Authorizer>> make_authorizer(Runtime& runtime, const MembersOptions& options, KeyPair identity,
                                                    std::shared_ptr<const RsaSignatureValidator> key);

}  // namespace cohive::dht
