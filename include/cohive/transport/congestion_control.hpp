/// \file
/// Which of the kernel's algorithms decides how fast a TCP connection sends (TCP_CONGESTION, tcp(7)).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cohive/core/result.hpp"

namespace cohive::transport {

/// The word that stands for the kernel's own choice.
inline constexpr std::string_view kKernelCongestionControl = "kernel";

/// Returns the algorithm that the kernel gives to new connections, "cubic" on most systems.
const std::string& default_congestion_control();
/// Returns the algorithms that are loaded; empty where the kernel does not tell.
std::vector<std::string> available_congestion_controls();
/// Decides by what connections between cohive peers send.
/// \param wanted  the name of an algorithm; "kernel" for the kernel's own choice; "" for BBR where the kernel has it
/// Returns the name of the algorithm, "" for the kernel's own choice. Errc::invalid_argument: the kernel does not have
/// the wanted algorithm, or does not allow it to this process.
Result<std::string> choose_congestion_control(const std::string& wanted);

}  // namespace cohive::transport
