/// \file
/// fork(): what a child must not go on with. Threads are not there in a child, but copies of all sockets are: a child
/// that keeps the listening one keeps its port, when the parent is long gone. Python's workers that load data are such
/// children.
#pragma once

namespace cohive {

/// Has children of this process, from now on, close their copies of the sockets that cohive opens, and begin a log of
/// their own. Objects made before a fork must not be used in the child; see fork_generation(). Call before anything
/// else of cohive, and as often as you like. A child keeps the descriptors of the loop itself (epoll, timer, event),
/// through which nothing can be reached.
void follow_forks();

/// Notes a socket, for follow_forks(). Any thread. Sockets need not be told of when they are closed.
void note_socket(int descriptor);

/// Returns how many forks lie between the process that called follow_forks() first and this one.
unsigned fork_generation() noexcept;

}  // namespace cohive
