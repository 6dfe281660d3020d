#include "runtime/program/watch/phase.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace meshtrain {
namespace {

TEST(Phases, TheInnermostCounts) {
  EXPECT_EQ(Phase::current().text, "the set-up");
  EXPECT_EQ(Phase::current().kind, PhaseKind::SetUp);
  int step = 1;
  const Phase outer([&] { return PhaseState{"step " + std::to_string(step), PhaseKind::Step, step}; });
  {
    const Phase inner({"the export", PhaseKind::Export});
    EXPECT_EQ(Phase::current().kind, PhaseKind::Export);
  }
  step = 2;
  EXPECT_EQ(Phase::current().text, "step 2");
  EXPECT_EQ(Phase::current().step, 2);
}

TEST(Phases, TheOneThatAnExceptionHasLeftIsKept) {
  const auto fail = [](int step) {
    const Phase outer({"step " + std::to_string(step), PhaseKind::Step, step});
    const Phase inner({"the reading", PhaseKind::Reading, step});
    throw std::runtime_error("no such file");
  };
  EXPECT_THROW(fail(3), std::runtime_error);
  EXPECT_EQ(Phase::failed().kind, PhaseKind::Reading);
  EXPECT_EQ(Phase::failed().step, 3);
  EXPECT_EQ(Phase::current().kind, PhaseKind::SetUp);
  { const Phase later("another"); }
  EXPECT_EQ(Phase::failed().kind, PhaseKind::SetUp) << "the work has continued";
}

TEST(Phases, KindsHaveNames) {
  for (const PhaseKind kind : {PhaseKind::SetUp, PhaseKind::Resume, PhaseKind::Step, PhaseKind::Reading,
                               PhaseKind::Saving, PhaseKind::Export, PhaseKind::Other}) {
    EXPECT_EQ(phase_kind_named(name(kind)), kind);
  }
  EXPECT_EQ(phase_kind_named("of a later version"), PhaseKind::Other);
}

}  // namespace
}  // namespace meshtrain
