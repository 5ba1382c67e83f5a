// The doctor's step `link`.
#include "dht/kernel_link.hpp"

#include <gtest/gtest.h>

#include "cohive/transport/congestion_control.hpp"

namespace cohive::tools {
namespace {

bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(KernelLink, SaysWhatBuffersAllowAndHowToMakeThemLarger) {
  const KernelLink link{.between_cohive = "bbr",
                        .otherwise = "cubic",
                        .available = {"reno", "cubic", "bbr"},
                        .interface = "eth0",
                        .qdisc = "fq_codel",
                        .most_send = 4 << 20,
                        .most_receive = 6 << 20};
  const Finding finding = examine_kernel_link(link, 100ms);
  EXPECT_EQ(finding.status, Finding::Status::ok);
  EXPECT_TRUE(says(finding.text, "send by bbr, others by cubic (the kernel has reno, cubic, bbr)")) << finding.text;
  EXPECT_TRUE(says(finding.text, "eth0 queues by fq_codel")) << finding.text;
  EXPECT_TRUE(says(finding.text, "send about 168 and receive about 252 Mbit/s at 100.0 ms")) << finding.text;
  EXPECT_TRUE(says(finding.advice, "sysctl -w net.ipv4.tcp_wmem=\"4096 16384 33554432\"")) << finding.advice;
  EXPECT_TRUE(says(finding.advice, "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 33554432\"")) << finding.advice;
  EXPECT_FALSE(says(finding.advice, "modprobe"));
}

TEST(KernelLink, AdvisesNothingWhereNothingIsAmiss) {
  const KernelLink link{.between_cohive = "bbr", .otherwise = "bbr", .most_send = 4 << 20, .most_receive = 6 << 20};
  const Finding finding = examine_kernel_link(link, 1ms);
  EXPECT_EQ(finding.advice, "");
  EXPECT_TRUE(says(finding.text, "tcp_wmem of 4.0 and tcp_rmem of 6.0 MiB are ample at 1.0 ms")) << finding.text;
}

TEST(KernelLink, AdvisesBbrWhereTheKernelDoesNotHaveIt) {
  const KernelLink link{
      .between_cohive = "cubic", .otherwise = "cubic", .most_send = 64 << 20, .most_receive = 64 << 20};
  EXPECT_TRUE(says(examine_kernel_link(link, 100ms).advice, "modprobe tcp_bbr"));
}

TEST(KernelLink, ReadsThisMachine) {
  const auto link = read_kernel_link(Multiaddr::from_text("/ip4/127.0.0.1/tcp/1").value());
  EXPECT_EQ(link.otherwise, transport::default_congestion_control());
  EXPECT_FALSE(link.between_cohive.empty());
  EXPECT_EQ(link.interface, "lo");
  EXPECT_FALSE(link.qdisc.empty());
  EXPECT_GT(link.most_send, 0u);
}

}  // namespace
}  // namespace cohive::tools
