#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "mesh/device/host_rows.h"
#include "runtime/training/model/operators/glu_host.h"
#include "runtime/training/model/operators/rms_norm.h"
#include "runtime/training/model/operators/rms_norm_host.h"
#include "runtime/training/model/operators/rope_host.h"
#include "runtime/training/optimizer/operators/adamw_host.h"
#include "runtime/training/trainer/operators/squared_norm_host.h"
#include "tensor_parallel/products/few_rows.h"

namespace meshtrain {
namespace {

constexpr int64_t kRows = 5, kFeatures = 48;

/// Loops with AVX2 write the bits that they write with AVX-512, on a processor that has both.
template <class T>
class HostLoops : public ::testing::Test {
 protected:
  void SetUp() override {
    if (lane_set(c10::CppTypeToScalarType<T>()) != LaneSet::Avx512) GTEST_SKIP() << "one set of instructions alone";
  }

  /// Returns normally distributed elements.
  std::vector<T> numbers(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<T> all(static_cast<size_t>(count));
    std::generate(all.begin(), all.end(), [&] { return static_cast<T>(normal(generator_)); });
    return all;
  }

  /// Expects that `compute(set, out)` writes the same `count` elements of type O whatever the set is, but for halves
  /// that AVX-512 stores as zeros.
  template <class O, class Compute>
  static void expect_equal_bits(int64_t count, const Compute& compute, const std::vector<O>& before = {}) {
    std::vector<O> narrow = before, wide = before;
    narrow.resize(static_cast<size_t>(count)), wide.resize(static_cast<size_t>(count));
    compute(Avx2(), narrow.data());
    compute(Avx512(), wide.data());
    for (size_t i = 0; i < narrow.size(); ++i) {
      const auto value = static_cast<float>(narrow[i]);
      if (sizeof(O) == 2 && std::abs(value) <= std::numeric_limits<float>::min())
        narrow[i] = std::copysign(0.0F, value);
      ASSERT_EQ(std::memcmp(&narrow[i], &wide[i], sizeof(O)), 0) << i << ": " << narrow[i] << ", " << wide[i];
    }
    EXPECT_NE(std::memcmp(narrow.data(), std::vector<O>(narrow.size()).data(), narrow.size() * sizeof(O)), 0);
  }

 private:
  std::mt19937 generator_{1};
};

using Elements = ::testing::Types<float, c10::BFloat16>;
TYPED_TEST_SUITE(HostLoops, Elements);

TYPED_TEST(HostLoops, OfGluHaveTheSameBits) {
  using T = TypeParam;
  std::vector<T> gate_up = this->numbers(kRows * 2 * kFeatures);
  const std::vector<T> grad = this->numbers(kRows * kFeatures);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> unusual{0,   -0.0F, 1e-30F, -1e-30F, 87,       -87,       88.5F,   -88.5F,
                                   103, -103,  1e4F,   -1e4F,   infinity, -infinity, 3.4e38F, -3.4e38F};
  std::copy(unusual.begin(), unusual.end(), gate_up.begin());
  for (const bool gelu : {false, true}) {
    this->template expect_equal_bits<T>(kRows * kFeatures, [&]<class Set>(Set, T* out) {
      glu_host::forward<Set>(gate_up.data(), kRows, kFeatures, gelu, out);
    });
    this->template expect_equal_bits<T>(kRows * 2 * kFeatures, [&]<class Set>(Set, T* out) {
      glu_host::backward<Set>(grad.data(), gate_up.data(), kRows, kFeatures, gelu, out);
    });
  }
}

TYPED_TEST(HostLoops, OfRmsNormHaveTheSameBits) {
  using T = TypeParam;
  const std::vector<T> x = this->numbers(kRows * kFeatures), residual = this->numbers(kRows * kFeatures);
  const std::vector<T> weight = this->numbers(kFeatures), grad = this->numbers(kRows * kFeatures);
  std::vector<float> rstd(kRows, 0.5F), grad_weight(kFeatures);
  std::vector<T> sum(x.size());
  for (const NormWeight applied : {NormWeight::Rounded, NormWeight::Wide, NormWeight::PlusOne}) {
    const rms_norm_host::Rows rows{kRows, kFeatures, static_cast<int64_t>(applied)};
    this->template expect_equal_bits<T>(kRows * kFeatures, [&]<class Set>(Set, T* out) {
      rms_norm_host::forward<Set>(x.data(), weight.data(), rows, 1e-5F, out, rstd.data());
    });
    this->template expect_equal_bits<float>(kRows, [&]<class Set>(Set, float* out) {
      std::vector<T> normalised(x.size());
      rms_norm_host::forward_of_sum<Set>(x.data(), residual.data(), weight.data(), rows, 1e-5F, sum.data(),
                                         normalised.data(), out);
    });
    this->template expect_equal_bits<T>(kRows * kFeatures, [&]<class Set>(Set, T* out) {  // a residual stream in fp32
      const std::vector<float> wide(x.begin(), x.end());
      rms_norm_host::forward<Set>(wide.data(), weight.data(), rows, 1e-5F, out, rstd.data());
    });
    this->template expect_equal_bits<T>(kRows * kFeatures, [&]<class Set>(Set, T* out) {
      rms_norm_host::backward<Set>(grad.data(), residual.data(), x.data(), weight.data(), rstd.data(), rows, out,
                                   grad_weight.data());
    });
  }
}

TYPED_TEST(HostLoops, OfRotaryEmbeddingsHaveTheSameBits) {
  using T = TypeParam;
  constexpr int64_t kHalf = 21;  // ends within a register
  const std::vector<T> x = this->numbers(3 * 2 * kHalf), cos = this->numbers(kHalf), sin = this->numbers(kHalf);
  for (const bool back : {false, true}) {
    this->template expect_equal_bits<T>(3 * 2 * kHalf, [&]<class Set>(Set, T* out) {
      rope_host::rotate_heads<Set>(x.data(), cos.data(), sin.data(), {3, kHalf, 2 * kHalf, 2 * kHalf}, back, out);
    });
  }
}

TYPED_TEST(HostLoops, OfAdamWHaveTheSameBits) {
  using T = TypeParam;
  constexpr int64_t kCount = 37;
  const adamw_host::Update update{0.999F, 0.9F, 0.95F, 0.1F, 0.05F, 3e-4F, 1.1F, 1e-8F, 0.7F};
  const std::vector<T> gradients = this->numbers(kCount);
  const std::vector<float> before(kCount, 0.25F);
  this->template expect_equal_bits<float>(
      kCount,
      [&]<class Set>(Set, float* values) {
        std::vector<float> first = before, second = before;
        std::vector<T> rounded(kCount);
        adamw_host::update<Set>(update, kCount, gradients.data(), values, first.data(), second.data(), rounded.data());
        for (size_t i = 0; i < rounded.size(); ++i) ASSERT_EQ(rounded[i], static_cast<T>(values[i]));
      },
      before);
}

TYPED_TEST(HostLoops, OfSumsHaveTheSameBits) {
  using T = TypeParam;
  const std::vector<T> elements = this->numbers(1003), weights = this->numbers(9 * 1003);
  this->template expect_equal_bits<double>(
      1, [&]<class Set>(Set, double* out) { *out = squared_norm_host::sum_of_squares<Set>(elements.data(), 1003); });
  for (int64_t rows = 1; rows <= few_rows::kMost; ++rows) {
    this->template expect_equal_bits<T>(9 * rows, [&]<class Set>(Set, T* out) {
      few_rows::multiply<Set>({elements.data(), 1}, rows, {weights.data(), 1003}, 9, 999, few_rows::Rows<T>{out, 9});
    });
  }
}

/// Rounding to halves by arithmetic on integers, of numbers halfway between two, the largest ones and NaN.
TEST(HostLoops, RoundHalvesToNearestEven) {
  if (lane_set(at::kBFloat16) == LaneSet::None) GTEST_SKIP() << "no loops";
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values{1.00390625F, 1.01171875F, -1.00390625F, 3.3961775e38F, -3.4e38F, kNan, -kNan, 0};
  std::vector<float> seen = values, first(values.size()), second(values.size());
  const std::vector<float> gradients(values.size());
  std::vector<c10::BFloat16> rounded(values.size());
  // Nothing changes but the rounding: a gradient of zero, and no decay.
  adamw_host::update<Avx2>({1, 0.9F, 0.95F, 0.1F, 0.05F, 1e-3F, 1, 1e-8F, 1}, std::ssize(values), gradients.data(),
                           seen.data(), first.data(), second.data(), rounded.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto found = static_cast<float>(rounded[i]), wanted = static_cast<float>(c10::BFloat16(values[i]));
    EXPECT_TRUE(found == wanted || (std::isnan(found) && std::isnan(wanted))) << values[i] << ": " << found;
  }
}

}  // namespace
}  // namespace meshtrain
