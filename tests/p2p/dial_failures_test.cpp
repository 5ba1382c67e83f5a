// Why a dial failed is decided by codes: whatever the sentences say.
#include "p2p/dial_failures.hpp"

#include <gtest/gtest.h>

#include <cerrno>

#include "cohive/core/errors.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/initial_peers.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::p2p {
namespace {

DialFailure cause(const Error& error) {
  return cause_of_dial_failure(Multiaddr::from_text("/ip4/10.0.0.1/tcp/1").value(), error);
}

TEST(DialFailures, AreToldApartByTheirCodes) {
  EXPECT_EQ(cause(Error(transport::Errc::refused, "whatever it says")), DialFailure::refused);
  EXPECT_EQ(cause(Error(transport::Errc::unreachable)), DialFailure::unreachable);
  EXPECT_EQ(cause(Error(cohive::Errc::timeout)), DialFailure::timeout);
  EXPECT_EQ(cause(Error(transport::Errc::handshake_failed)), DialFailure::handshake);
  EXPECT_EQ(cause(Error(transport::Errc::dial_failed, "10.0.0.1: connection refused")), DialFailure::other)
      << "a text decides nothing";
  EXPECT_EQ(cause(system_error(transport::Errc::dial_failed, EMFILE, "10.0.0.1")), DialFailure::other)
      << "no file left here says nothing about the network";
}

TEST(DialFailures, OfThisMachineAloneAreToldByTheSystemsNumber) {
  for (const int number : {ENETUNREACH, ENETDOWN, EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS})
    EXPECT_TRUE(is_local_failure(system_error(transport::Errc::unreachable, number, "10.0.0.1"))) << number;
  for (const int number : {ECONNREFUSED, EHOSTUNREACH, ETIMEDOUT})
    EXPECT_FALSE(is_local_failure(system_error(transport::Errc::unreachable, number, "10.0.0.1"))) << number;
  EXPECT_FALSE(is_local_failure(Error(cohive::Errc::timeout)));
}

TEST(InitialPeers, AWrongPeerIsKnownByItsCodeThroughAllThatSumsItUp) {
  const Error wrong(transport::Errc::peer_mismatch, "10.0.0.1");
  EXPECT_TRUE(names_wrong_peer(wrong));
  const Error all = Error(Errc::bootstrap_failed, "two").with_cause(Error(cohive::Errc::timeout)).with_cause(wrong);
  EXPECT_TRUE(names_wrong_peer(all.with_context("joining")));
  EXPECT_FALSE(names_wrong_peer(Error(Errc::bootstrap_failed, wrong.message()))) << "a text decides nothing";
}

}  // namespace
}  // namespace cohive::p2p
