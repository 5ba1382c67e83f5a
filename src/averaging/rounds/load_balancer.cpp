#include "load_balancer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cohive::averaging {
namespace {

using Vector = std::vector<double>;

struct Tableau {
  std::size_t rows, columns;
  Vector values;
  Tableau(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
  double& at(std::size_t r, std::size_t c) { return values[r * columns + c]; }
  double at(std::size_t r, std::size_t c) const { return values[r * columns + c]; }
  double* row(std::size_t r) { return values.data() + r * columns; }
};

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
double norm(const Vector& a) {
  return std::sqrt(dot(a, a));
}

Vector times(const Tableau& m, const Vector& v) {
  Vector out(m.rows);
  for (std::size_t r = 0; r < m.rows; ++r)
    for (std::size_t c = 0; c < m.columns; ++c) out[r] += m.at(r, c) * v[c];
  return out;
}
Vector times_transposed(const Tableau& m, const Vector& v) {
  Vector out(m.columns);
  for (std::size_t r = 0; r < m.rows; ++r)
    for (std::size_t c = 0; c < m.columns; ++c) out[c] += m.at(r, c) * v[r];
  return out;
}

/// LU factors with partial pivoting. Most entries of these systems are zero, and are passed over.
class Factors {
 public:
  explicit Factors(Tableau m) : lu_(std::move(m)), order_(lu_.rows) {
    const std::size_t n = lu_.rows;
    std::iota(order_.begin(), order_.end(), 0);
    for (std::size_t column = 0; column < n && regular_; ++column) {
      std::size_t pivot = column;
      for (std::size_t r = column + 1; r < n; ++r)
        if (std::abs(lu_.at(r, column)) > std::abs(lu_.at(pivot, column))) pivot = r;
      regular_ = std::abs(lu_.at(pivot, column)) > 1e-300;
      if (pivot != column) {
        std::swap(order_[pivot], order_[column]);
        std::swap_ranges(lu_.row(pivot), lu_.row(pivot) + n, lu_.row(column));
      }
      for (std::size_t r = column + 1; r < n; ++r) {
        double& factor = lu_.at(r, column);
        if (factor == 0) continue;
        factor /= lu_.at(column, column);
        for (std::size_t c = column + 1; c < n; ++c) lu_.at(r, c) -= factor * lu_.at(column, c);
      }
    }
  }
  bool regular() const { return regular_; }
  Vector solve(const Vector& b) const {
    const std::size_t n = lu_.rows;
    Vector x(n);
    for (std::size_t r = 0; r < n; ++r) {
      x[r] = b[order_[r]];
      for (std::size_t c = 0; c < r; ++c) x[r] -= lu_.at(r, c) * x[c];
    }
    for (std::size_t r = n; r-- > 0;) {
      for (std::size_t c = r + 1; c < n; ++c) x[r] -= lu_.at(r, c) * x[c];
      x[r] /= lu_.at(r, r);
    }
    return x;
  }

 private:
  Tableau lu_;
  std::vector<std::size_t> order_;
  bool regular_ = true;
};

/// A D A', where a column of A has few entries.
Tableau normal_equations(const Tableau& a, const Vector& d) {
  Tableau normal(a.rows, a.rows);
  std::vector<std::size_t> used;
  for (std::size_t k = 0; k < a.columns; ++k) {
    used.clear();
    for (std::size_t r = 0; r < a.rows; ++r)
      if (a.at(r, k) != 0) used.push_back(r);
    for (std::size_t i : used)
      for (std::size_t j : used) normal.at(i, j) += a.at(i, k) * d[k] * a.at(j, k);
  }
  return normal;
}

/// Mehrotra's predictor-corrector on the homogeneous self-dual form (Andersen and Andersen): min c'x, Ax = b, x >= 0.
class InteriorPoint {
 public:
  InteriorPoint(const Tableau& a, const Vector& b, const Vector& c)
      : a_(a), b_(b), c_(c), n_(a.columns), m_(a.rows), x_(n_, 1.0), z_(n_, 1.0), y_(m_, 0.0) {}

  /// Nothing: there is no solution, none was found, or it was to stop.
  std::optional<Vector> solve(const std::stop_token& stop);

 private:
  struct Residuals {
    Vector primal, dual;
    double gap = 0, mu = 0;
  };
  struct Direction {
    Vector x, z, y;
    double tau = 0, kappa = 0;
  };
  Residuals residuals() const;
  std::optional<Direction> direction(const Residuals& now) const;
  double longest_step(const Direction& to, double bound) const;
  void move(const Direction& to, double alpha);

  const Tableau& a_;
  const Vector &b_, &c_;
  const std::size_t n_, m_;
  Vector x_, z_, y_;
  double tau_ = 1, kappa_ = 1;
};

std::optional<Vector> InteriorPoint::solve(const std::stop_token& stop) {
  constexpr double kTolerance = 1e-8, kStep = 0.99995;
  constexpr int kMaxIterations = 200;  // a few dozen are usual; SciPy's thousand would only take longer to fail
  const Residuals first = residuals();
  const double primal0 = std::max(1.0, norm(first.primal)), dual0 = std::max(1.0, norm(first.dual));
  for (int iteration = 0; iteration < kMaxIterations && !stop.stop_requested(); ++iteration) {
    const Residuals now = residuals();
    const double gap = std::abs(dot(c_, x_) - dot(b_, y_)) / (tau_ + std::abs(dot(b_, y_)));
    if (norm(now.primal) / primal0 <= kTolerance && norm(now.dual) / dual0 <= kTolerance && gap <= kTolerance) {
      for (double& value : x_) value /= tau_;
      return x_;
    }
    const auto to = direction(now);
    if (!to) return std::nullopt;
    move(*to, std::min(1.0, kStep * longest_step(*to, 1e300)));
    if (!std::isfinite(tau_) || !(tau_ > 0)) return std::nullopt;
  }
  return std::nullopt;
}

InteriorPoint::Residuals InteriorPoint::residuals() const {
  const Vector ax = times(a_, x_), aty = times_transposed(a_, y_);
  Residuals now{Vector(m_), Vector(n_)};
  for (std::size_t i = 0; i < m_; ++i) now.primal[i] = b_[i] * tau_ - ax[i];
  for (std::size_t i = 0; i < n_; ++i) now.dual[i] = c_[i] * tau_ - aty[i] - z_[i];
  now.gap = dot(c_, x_) - dot(b_, y_) + kappa_;
  now.mu = (dot(x_, z_) + tau_ * kappa_) / static_cast<double>(n_ + 1);
  return now;
}

/// Predicts, then corrects. Nothing: the normal equations are singular.
std::optional<InteriorPoint::Direction> InteriorPoint::direction(const Residuals& now) const {
  Vector d(n_);
  for (std::size_t i = 0; i < n_; ++i) d[i] = x_[i] / z_[i];
  const Factors normal(normal_equations(a_, d));
  if (!normal.regular()) return std::nullopt;
  const auto solve = [&](const Vector& r1, const Vector& r2, Vector& u, Vector& v) {
    Vector scaled(n_);
    for (std::size_t i = 0; i < n_; ++i) scaled[i] = d[i] * r1[i];
    v = times(a_, scaled);
    for (std::size_t i = 0; i < m_; ++i) v[i] += r2[i];
    v = normal.solve(v);
    u = times_transposed(a_, v);
    for (std::size_t i = 0; i < n_; ++i) u[i] = d[i] * (u[i] - r1[i]);
  };
  Direction to{Vector(n_), Vector(n_), Vector(m_)};
  Vector p, q, u, v;
  double gamma = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const double eta = 1 - gamma;
    Vector rxs(n_), scaled_dual(n_), scaled_primal(m_);
    for (std::size_t i = 0; i < n_; ++i) {
      rxs[i] = gamma * now.mu - x_[i] * z_[i] - (pass ? to.x[i] * to.z[i] : 0);
      scaled_dual[i] = eta * now.dual[i] - rxs[i] / x_[i];
    }
    for (std::size_t i = 0; i < m_; ++i) scaled_primal[i] = eta * now.primal[i];
    const double rtk = gamma * now.mu - tau_ * kappa_ - (pass ? to.tau * to.kappa : 0);
    solve(c_, b_, p, q);
    solve(scaled_dual, scaled_primal, u, v);
    to.tau = (eta * now.gap + rtk / tau_ + dot(c_, u) - dot(b_, v)) / (kappa_ / tau_ - dot(c_, p) + dot(b_, q));
    for (std::size_t i = 0; i < n_; ++i) to.x[i] = u[i] + p[i] * to.tau;
    for (std::size_t i = 0; i < m_; ++i) to.y[i] = v[i] + q[i] * to.tau;
    for (std::size_t i = 0; i < n_; ++i) to.z[i] = (rxs[i] - z_[i] * to.x[i]) / x_[i];
    to.kappa = (rtk - kappa_ * to.tau) / tau_;
    const double alpha = longest_step(to, 1.0);
    gamma = (1 - alpha) * (1 - alpha) * std::min(0.1, 1 - alpha);
  }
  return to;
}

/// How far it may go, `bound` at most, before a value that must not be negative is 0.
double InteriorPoint::longest_step(const Direction& to, double bound) const {
  double alpha = bound;
  for (std::size_t i = 0; i < n_; ++i) {
    if (to.x[i] < 0) alpha = std::min(alpha, -x_[i] / to.x[i]);
    if (to.z[i] < 0) alpha = std::min(alpha, -z_[i] / to.z[i]);
  }
  if (to.tau < 0) alpha = std::min(alpha, -tau_ / to.tau);
  if (to.kappa < 0) alpha = std::min(alpha, -kappa_ / to.kappa);
  return alpha;
}

void InteriorPoint::move(const Direction& to, double alpha) {
  for (std::size_t i = 0; i < n_; ++i) x_[i] += alpha * to.x[i], z_[i] += alpha * to.z[i];
  for (std::size_t i = 0; i < m_; ++i) y_[i] += alpha * to.y[i];
  tau_ += alpha * to.tau;
  kappa_ += alpha * to.kappa;
}

}  // namespace

std::vector<double> balance_load(const std::vector<std::optional<double>>& given, std::uint64_t total,
                                 std::uint64_t min_size, const std::stop_token& stop) {
  double sum = 0;
  std::size_t positive = 0;
  for (const auto& bandwidth : given)
    if (bandwidth && *bandwidth > 0) sum += *bandwidth, ++positive;
  Vector bandwidth;
  for (const auto& one : given) bandwidth.push_back(one ? *one : sum / static_cast<double>(positive));
  std::vector<std::size_t> order(bandwidth.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](auto i, auto j) { return bandwidth[i] != bandwidth[j] ? bandwidth[i] > bandwidth[j] : i < j; });

  const double n = static_cast<double>(bandwidth.size());
  const auto k =
      static_cast<std::size_t>(std::count_if(bandwidth.begin(), bandwidth.end(), [](double b) { return b > 0; }));
  std::vector<double> scores(bandwidth.size(), 1.0);
  if (bandwidth.size() > 2 && k > 0) {
    // x = (w_1..w_k, xi, s_0, s_1..s_k, t_1..t_k). The rows of t come first: eliminating them leaves few new entries.
    Tableau a(1 + 2 * k, 3 * k + 2);
    Vector b(1 + 2 * k), c(3 * k + 2);
    c[k] = 1;
    b[k] = -1;
    a.at(k, k + 1) = 1;
    for (std::size_t i = 0; i < k; ++i) {
      const double speed = std::max(bandwidth[order[i]], 1e-9);
      a.at(k, i) = -1;
      a.at(k + 1 + i, i) = (n - 2) / speed;
      a.at(k + 1 + i, k) = -1;
      a.at(k + 1 + i, k + 2 + i) = 1;
      b[k + 1 + i] = -1 / speed;
      a.at(i, i) = 1;
      a.at(i, 2 * k + 2 + i) = 1;
      b[i] = 1;
    }
    if (const auto x = InteriorPoint(a, b, c).solve(stop)) {
      std::fill(scores.begin(), scores.end(), 0.0);
      double best = 0;
      for (std::size_t i = 0; i < k; ++i) best = std::max(best, (*x)[i]);
      const double threshold = static_cast<double>(min_size) / static_cast<double>(std::max<std::uint64_t>(total, 1));
      for (std::size_t i = 0; i < k; ++i) {
        const double score = best >= threshold && (*x)[i] < threshold ? 0 : (*x)[i];
        scores[order[i]] = std::round(score * 1e9) / 1e9;
      }
    }
  } else {
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = bandwidth[i] > 0 ? 1.0 : 0.0;
  }
  return scores;
}

}  // namespace cohive::averaging
