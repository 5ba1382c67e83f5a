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
std::optional<Vector> interior_point(const Tableau& a, const Vector& b, const Vector& c, const std::stop_token& stop) {
  constexpr double kTolerance = 1e-8, kStep = 0.99995;
  constexpr int kMaxIterations = 200;  // a few dozen are usual; SciPy's thousand would only take longer to fail
  const std::size_t n = a.columns, m = a.rows;
  Vector x(n, 1.0), z(n, 1.0), y(m, 0.0);
  double tau = 1, kappa = 1;
  const auto residuals = [&](Vector& rp, Vector& rd, double& rg, double& mu) {
    const Vector ax = times(a, x), aty = times_transposed(a, y);
    rp.resize(m), rd.resize(n);
    for (std::size_t i = 0; i < m; ++i) rp[i] = b[i] * tau - ax[i];
    for (std::size_t i = 0; i < n; ++i) rd[i] = c[i] * tau - aty[i] - z[i];
    rg = dot(c, x) - dot(b, y) + kappa;
    mu = (dot(x, z) + tau * kappa) / static_cast<double>(n + 1);
  };
  Vector rp, rd;
  double rg, mu;
  residuals(rp, rd, rg, mu);
  const double rp0 = std::max(1.0, norm(rp)), rd0 = std::max(1.0, norm(rd));
  for (int iteration = 0; iteration < kMaxIterations && !stop.stop_requested(); ++iteration) {
    residuals(rp, rd, rg, mu);
    const double gap = std::abs(dot(c, x) - dot(b, y)) / (tau + std::abs(dot(b, y)));
    if (norm(rp) / rp0 <= kTolerance && norm(rd) / rd0 <= kTolerance && gap <= kTolerance) {
      for (double& value : x) value /= tau;
      return x;
    }
    Vector d(n);
    for (std::size_t i = 0; i < n; ++i) d[i] = x[i] / z[i];
    const Factors normal(normal_equations(a, d));
    if (!normal.regular()) return std::nullopt;
    const auto solve = [&](const Vector& r1, const Vector& r2, Vector& u, Vector& v) {
      Vector scaled(n);
      for (std::size_t i = 0; i < n; ++i) scaled[i] = d[i] * r1[i];
      v = times(a, scaled);
      for (std::size_t i = 0; i < m; ++i) v[i] += r2[i];
      v = normal.solve(v);
      u = times_transposed(a, v);
      for (std::size_t i = 0; i < n; ++i) u[i] = d[i] * (u[i] - r1[i]);
    };
    Vector dx(n), dz(n), dy(m), p, q, u, v;
    double dtau = 0, dkappa = 0, gamma = 0;
    const auto longest = [&](double bound) {
      double alpha = bound;
      for (std::size_t i = 0; i < n; ++i) {
        if (dx[i] < 0) alpha = std::min(alpha, -x[i] / dx[i]);
        if (dz[i] < 0) alpha = std::min(alpha, -z[i] / dz[i]);
      }
      if (dtau < 0) alpha = std::min(alpha, -tau / dtau);
      if (dkappa < 0) alpha = std::min(alpha, -kappa / dkappa);
      return alpha;
    };
    for (int pass = 0; pass < 2; ++pass) {
      const double eta = 1 - gamma;
      Vector rxs(n), scaled_rd(n), scaled_rp(m);
      for (std::size_t i = 0; i < n; ++i) {
        rxs[i] = gamma * mu - x[i] * z[i] - (pass ? dx[i] * dz[i] : 0);
        scaled_rd[i] = eta * rd[i] - rxs[i] / x[i];
      }
      for (std::size_t i = 0; i < m; ++i) scaled_rp[i] = eta * rp[i];
      const double rtk = gamma * mu - tau * kappa - (pass ? dtau * dkappa : 0);
      solve(c, b, p, q);
      solve(scaled_rd, scaled_rp, u, v);
      dtau = (eta * rg + rtk / tau + dot(c, u) - dot(b, v)) / (kappa / tau - dot(c, p) + dot(b, q));
      for (std::size_t i = 0; i < n; ++i) dx[i] = u[i] + p[i] * dtau;
      for (std::size_t i = 0; i < m; ++i) dy[i] = v[i] + q[i] * dtau;
      for (std::size_t i = 0; i < n; ++i) dz[i] = (rxs[i] - z[i] * dx[i]) / x[i];
      dkappa = (rtk - kappa * dtau) / tau;
      const double alpha = longest(1.0);
      gamma = (1 - alpha) * (1 - alpha) * std::min(0.1, 1 - alpha);
    }
    const double alpha = std::min(1.0, kStep * longest(1e300));
    for (std::size_t i = 0; i < n; ++i) x[i] += alpha * dx[i], z[i] += alpha * dz[i];
    for (std::size_t i = 0; i < m; ++i) y[i] += alpha * dy[i];
    tau += alpha * dtau;
    kappa += alpha * dkappa;
    if (!std::isfinite(tau) || !(tau > 0)) return std::nullopt;
  }
  return std::nullopt;
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
    if (const auto x = interior_point(a, b, c, stop)) {
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
