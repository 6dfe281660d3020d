#include "mesh/base/files/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

class FileLock : public ::testing::Test {
 protected:
  std::filesystem::path lock_file(const char* name = "lock") const { return folder_.path() / name; }

  const testing::ScratchFolder folder_;
};

TEST_F(FileLock, IsHeldUntilItsObjectIsGone) {
  auto first = std::make_unique<LockFile>(lock_file());
  EXPECT_FALSE(first->is_taken());
  EXPECT_TRUE(LockFile(lock_file()).is_taken());
  EXPECT_TRUE(LockFile(lock_file()).is_taken()) << "the destructor of an object without the lock releases nothing";
  first.reset();
  const LockFile next(lock_file());
  EXPECT_FALSE(next.is_taken());
  EXPECT_EQ(next.warning(), "");
}

TEST_F(FileLock, IsFreeAfterItsProcessHasEnded) {
  const pid_t child = fork();
  if (child == 0) {
    const LockFile* const kept = new LockFile(lock_file());  // no destructor releases it
    _exit(kept->is_taken() ? 1 : 0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(LockFile(lock_file()).is_taken());
}

TEST_F(FileLock, IsOnTheFileThatHasTheName) {
  const LockFile first(lock_file());
  std::filesystem::rename(lock_file(), lock_file("away"));
  EXPECT_FALSE(LockFile(lock_file()).is_taken()) << "the name is that of another file now";
  EXPECT_TRUE(LockFile(lock_file("away")).is_taken());
  const int descriptor = ::open(lock_file("away").c_str(), O_RDWR);
  EXPECT_TRUE(is_named(descriptor, lock_file("away")));
  EXPECT_FALSE(is_named(descriptor, lock_file()));
  EXPECT_FALSE(is_named(descriptor, lock_file("none")));
  ::close(descriptor);
}

TEST_F(FileLock, AFileThatCannotBeCreatedIsAnErrorWithTheReason) {
  EXPECT_EQ(testing::message<InputError>([&] { LockFile lock(lock_file("none/lock")); }),
            "cannot write " + lock_file("none/lock").string() + ": No such file or directory");
}

}  // namespace
}  // namespace meshtrain
