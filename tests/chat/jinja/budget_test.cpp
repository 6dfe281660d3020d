#include "runtime/text/jinja/budget.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/text/jinja/failure.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

using jinja::Budget;
using jinja::Failure;

TEST(JinjaBudget, IsSpentToTheLastUnit) {
  Budget budget({.work = 10, .made_bytes = 20, .depth = 2});
  budget.work(4);
  budget.work(6);
  EXPECT_EQ(message<Failure>([&] { budget.work(1); }), "the template computes for too long: it is stopped");
  budget.make(20);
  EXPECT_THROW(budget.make(1), Failure);
  EXPECT_NO_THROW(budget.work(0));
}

TEST(JinjaBudget, IsNotSpentByARefusalOrAnOverflow) {
  Budget budget({.work = 10, .made_bytes = 20, .depth = 2});
  budget.work(5);
  budget.make(5);
  EXPECT_THROW(budget.work(std::numeric_limits<int64_t>::max()), Failure);
  EXPECT_THROW(budget.make(std::numeric_limits<int64_t>::max()), Failure);
  EXPECT_NO_THROW(budget.work(5));
  EXPECT_NO_THROW(budget.make(15));
}

TEST(JinjaBudget, CountsLevelsThatAreOpen) {
  Budget budget({.depth = 2});
  for (int i = 0; i < 5; ++i) {
    budget.enter();
    budget.leave();
  }
  budget.enter();
  budget.enter();
  EXPECT_EQ(message<Failure>([&] { budget.enter(); }),
            "the template calls itself, or is nested, more than 2 levels deep");
  budget.leave();
  EXPECT_NO_THROW(budget.enter());
}

}  // namespace
}  // namespace meshtrain::testing
