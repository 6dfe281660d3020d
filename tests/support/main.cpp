#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "mesh/backends/local.h"
#include "mesh/backends/mpi/launcher.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

Group make_world() {
  const std::shared_ptr<Backend> backend = launched_by_mpi() ? mpi_backend() : local_backend();
  std::vector<int64_t> ranks(static_cast<size_t>(backend->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(backend, "world", std::move(ranks), "rank " + std::to_string(backend->rank()));
}

/// A listener that ends the run at the first failure of a rank, with its message: the other ranks would wait for it.
class EndOnFailure final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    // GoogleTest holds its lock here: a call to it would block.
    std::fprintf(stderr, "rank %d of %d: %s failed at %s:%d\n%s\n", world().rank(), world().size(), test_.c_str(),
                 result.file_name() ? result.file_name() : "unknown", result.line_number(), result.message());
    abort_mpi(1);
  }

  std::string test_ = "a test's set-up";
};

bool is_a_share() {
  return std::getenv("GTEST_TOTAL_SHARDS") != nullptr;
}

/// A listener that hides GoogleTest's environment variables, such as a shard of the tests, from programs that tests
/// start.
class KeepVariables final : public ::testing::EmptyTestEventListener {
  void OnTestProgramStart(const ::testing::UnitTest& /*test*/) override {
    for (const char* name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_SHARD_STATUS_FILE", "GTEST_FILTER",
                             "GTEST_OUTPUT", "GTEST_REPEAT", "GTEST_ALSO_RUN_DISABLED_TESTS"}) {
      unsetenv(name);
    }
  }
};

}  // namespace

const Group& world() {
  static const Group group = make_world();
  return group;
}

at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  at::Tensor values = at::empty(shape, at::kDouble);
  std::generate_n(values.data_ptr<double>(), values.numel(), [&] { return normal(engine); });
  return values.to(dtype);
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_grad;
  if (a.sizes() != b.sizes()) throw std::invalid_argument("relative_error: tensors of different shapes");
  if (a.numel() == 0) return 0;
  const double difference = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  const double scale = b.to(at::kDouble).abs().max().item<double>();
  return difference == 0 ? 0 : difference / scale;
}

}  // namespace meshtrain::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  const meshtrain::Group& world = meshtrain::testing::world();
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  if (world.size() > 1) listeners.Append(new meshtrain::testing::EndOnFailure);
  const bool may_be_none = meshtrain::testing::is_a_share() || GTEST_FLAG_GET(list_tests);
  listeners.Append(new meshtrain::testing::KeepVariables);
  int status = RUN_ALL_TESTS();
  if (::testing::UnitTest::GetInstance()->test_to_run_count() == 0 && !may_be_none) {
    if (world.rank() == 0) std::fprintf(stderr, "no test ran: none is called %s\n", GTEST_FLAG_GET(filter).c_str());
    status = 1;
  }
  world.barrier();
  return status;
}
