/// \file
/// How a reducer makes one part of what the members of its group sent. Each reducer chooses for the parts it owns and
/// no other member needs to know, so that Python senders take part: a swarm is protected where all its reducers are.
///
/// Mean is hivemind's. The others, MeanOfSenders without a clip apart, bound what a minority that lies can do. In them
///  - a member that contributes with weight 0 (an auxiliary peer, say) has no vote;
///  - every other sender has one vote, whatever its weight: weights are claims, and votes must not be for sale;
///  - among the votes that count, weights matter up to the median weight (the upper one of an even number; ClippedMean:
///    up to its factor times that) and no further, and not below a millionth of it;
///  - the result does not depend on the order in which parts arrive;
///  - nothing is averaged before all votes of a part are there: the reducer keeps open parts * senders * part size (as
///    encoded; of codecs beyond hivemind's 4 bytes a value), with 4 open parts, fewer where that exceeds 64 MiB. What
///    is on its way comes on top, as with the mean.
///
/// Members hold the result as exactly as the codec carries what they sent and what they are answered, which is the
/// difference of the result to what they sent. That suits codecs whose error grows with each value (float16,
/// blockwise8). uniform8 has its bins within three deviations of the mean of a part; what lies beyond goes into the
/// outermost bin and comes out as that bin's average. With the mean, hardly anything lies beyond; differences to a
/// middle vote are zero for the voters in the middle and large for the others, and do. With d the deviation and m the
/// largest distance from the mean among the n values of what is encoded, one value comes out wrong by at most
///   max(step, m - 3 d + 1.5 step), where step = 6 d / 256; never more than about (sqrt(n) - 3) d, since m is bounded
///   so.
/// A member differs from its reducer by at most the sum of this for its part and for the answer. No member's error is
/// carried on: the next round averages what members really hold.
///
/// Where state is averaged too (cohive::Optimizer does it now and then), a reducer that lies can still put anything
/// into the parts that it owns itself: this is about senders.
#pragma once

#include <variant>

namespace cohive::averaging {

/// The weighted mean. One sender can move it anywhere.
struct Mean {};

/// Coordinate by coordinate, the lowest and the highest votes are left out and the weighted mean of the others is
/// taken. As many are left out at each end as `fraction` of the votes, rounded up, but never the middle one (of an even
/// number: two). While no more senders lie than are left out at one end, the result lies within the range of the honest
/// values. Two votes (or one) are too few to leave any out: their weighted mean is taken, and one liar moves it.
/// Source: Yin et al. 2018, "Byzantine-Robust Distributed Learning".
struct TrimmedMean {
  double fraction = 0.2;  ///< above 0, below 0.5
};

/// Iterated from the coordinate-wise median of the votes (unweighted), which needs no history of earlier rounds:
///   centre += sum of weight * min(1, radius / |vote - centre|) * (vote - centre) / sum of weights
/// Norms are Euclidean, over the values of one part; as in BTARD every part is clipped by itself. While fewer than half
/// of the votes lie, the result is at most iterations * radius * (share of the weight that lies) away from the range of
/// the honest values. Two votes have no majority: one liar moves the median half of the way, and a single vote is taken
/// as it is.
/// Source: Karimireddy et al. 2021, "Learning from History for Byzantine Robust Optimization"; Gorbunov et al. 2022,
/// "Secure Distributed Training at Scale" (BTARD).
struct CenteredClip {
  double radius = 1.0;  ///< above 0: about how far honest parts are from their mean
  int iterations = 5;   ///< 1 to 100
};

/// The weighted mean, in which no sender's part has a larger Euclidean norm than `factor` times the median norm of the
/// votes (the lower one of an even number): a longer one is scaled down to that, and to zero if the squares of its
/// values overflow a float. Honest senders whose norms are within the factor of the median norm, and whose weights are
/// within it of the median weight, have their exact mean. No radius need be known, so that it suits gradients and
/// parameters. While fewer than half of the votes lie, the result is at most (share of the weight that lies) *
/// factor * (the largest honest norm) away from what the honest senders put into it; a liar within the bound is not
/// noticed. Of two votes one liar can make the result small, but not large. A part that is zero in most votes is zero.
struct ClippedMean {
  double factor = 3.0;  ///< at least 1
};

/// Value by value, the weighted mean of the senders whose part has something other than 0 there: for sparse2 and top_k,
/// whose senders leave out what is small, as the code of SparseLoCo has it (https://github.com/one-covenant/templar);
/// its paper, and Mean, divide by the weights of all. A value that few have sent moves farther than with Mean. Without
/// a clip one sender can move it anywhere; with one, no sender's part has a norm of more than that times the median
/// norm, and weights count, as with ClippedMean.
struct MeanOfSenders {
  double clip = 0;  ///< at least 1, or 0: none
};

/// How a reducer makes one value of those that the senders of a part sent.
using Aggregation = std::variant<Mean, TrimmedMean, CenteredClip, ClippedMean, MeanOfSenders>;

/// Tells whether an aggregation bounds what a minority of liars can do.
bool bears_liars(const Aggregation& how);

}  // namespace cohive::averaging
