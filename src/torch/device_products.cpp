#include "device_products.hpp"

#include <ATen/Context.h>

#include "cohive/core/errors.hpp"

namespace cohive::libtorch {
namespace {

constexpr float kLeastNorm = 1e-8f;  // as hivemind's orthogonalize_

std::string sentence_of(const c10::Error& error) {
  const std::string_view all = error.what_without_backtrace();
  return "LibTorch cannot multiply: " + std::string(all.substr(0, all.find('\n')));
}

class Products final : public cuda::LowRankProducts {
 public:
  Products(torch::Device device, OnStream on_stream) : device_(device), on_stream_(std::move(on_stream)) {}

  Result<> project(CUstream_st* stream, const Matrix& matrix, const float* q, float* p) override {
    return queue(stream, [this, matrix, q, p] {
      const auto factor = view(q, matrix.rank, matrix.columns).t();
      auto result = view(p, matrix.rows, matrix.rank);
      at::mm_out(result, view(matrix.values, matrix.rows, matrix.columns), factor);
      if (matrix.owed) result.addmm_(view(matrix.owed, matrix.rows, matrix.columns), factor);
    });
  }

  Result<> orthogonalise(CUstream_st* stream, float* p, std::size_t rows, std::size_t rank) override {
    return queue(stream, [this, p, rows, rank] {
      const auto all = view(p, rows, rank);
      auto columns = all.t().contiguous();
      for (std::int64_t i = 0; i < columns.size(0); ++i) {
        auto column = columns[i];
        column.div_(column.norm().clamp_min(kLeastNorm));
        if (i + 1 == columns.size(0)) break;
        auto behind = columns.narrow(0, i + 1, columns.size(0) - i - 1);
        behind.sub_(behind.mv(column).outer(column));
      }
      all.copy_(columns.t());
    });
  }

  Result<> gather(CUstream_st* stream, const Matrix& matrix, const float* p, float* q) override {
    return queue(stream, [this, matrix, p, q] {
      const auto factor = view(p, matrix.rows, matrix.rank);
      auto result = view(q, matrix.columns, matrix.rank);
      at::mm_out(result, view(matrix.values, matrix.rows, matrix.columns).t(), factor);
      if (matrix.owed) result.addmm_(view(matrix.owed, matrix.rows, matrix.columns).t(), factor);
    });
  }

  Result<> expand(CUstream_st* stream, const Matrix& matrix, const float* p, const float* q, float* owed,
                  float* product) override {
    return queue(stream, [this, matrix, p, q, owed, product] {
      auto result = view(product, matrix.rows, matrix.columns);
      const auto multiply = [&] {
        at::mm_out(result, view(p, matrix.rows, matrix.rank), view(q, matrix.rank, matrix.columns));
      };
      if (!owed) return multiply();
      // What is applied and what is owed add up to what there was, whatever the products' rounding.
      auto rest = view(owed, matrix.rows, matrix.columns);
      const auto values = view(matrix.values, matrix.rows, matrix.columns);
      rest.add_(values);
      try {
        multiply();
      } catch (...) {
        rest.sub_(values);  // which are applied as they are
        throw;
      }
      rest.sub_(result);
    });
  }

 private:
  torch::Tensor view(const float* memory, std::size_t rows, std::size_t columns) const {
    return torch::from_blob(const_cast<float*>(memory),
                            {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)},
                            torch::TensorOptions(torch::kFloat32).device(device_));
  }

  template <class Work>
  Result<> queue(CUstream_st* stream, Work work) {
    return on_stream_(stream, [work]() -> Result<> {
      torch::NoGradGuard no_grad;
      const at::NoTF32Guard full_precision;
      try {
        work();
      } catch (const c10::OutOfMemoryError& error) {
        return Error(Errc::limit_exceeded, sentence_of(error));
      } catch (const c10::Error& error) {
        return Error(Errc::internal, sentence_of(error));
      }
      return ok();
    });
  }

  const torch::Device device_;
  const OnStream on_stream_;
};

}  // namespace

std::shared_ptr<cuda::LowRankProducts> make_products(torch::Device device, OnStream on_stream) {
  return std::make_shared<Products>(device, std::move(on_stream));
}

}  // namespace cohive::libtorch
