#include "mesh/base/files/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::content;
using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::SmallDisk;
using testing::write_file;

TEST(OutputFile, AppearsWholeOrNotAtAll) {
  const ScratchFolder folder;
  const auto path = folder.path() / "out";
  write_file(path, "before");
  {
    OutputFile unfinished(path);
    unfinished.append("after", 5);
    EXPECT_EQ(content(path), "before");
  }
  EXPECT_EQ(content(path), "before");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.partial"));
  OutputFile file(path);
  file.append("af", 2);
  file.append("ter", 3);
  file.write_at(1, "F", 1);
  file.finish();
  EXPECT_EQ(content(path), "aFter");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.partial"));
}

/// Returns the bytes of the file that the system has in memory, and the bytes of its pages.
std::pair<int64_t, int64_t> cached_bytes(const std::filesystem::path& path) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const auto size = static_cast<size_t>(std::filesystem::file_size(path));
  const int descriptor = open(path.c_str(), O_RDONLY);
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  close(descriptor);
  std::vector<unsigned char> resident((size + static_cast<size_t>(page) - 1) / static_cast<size_t>(page));
  EXPECT_EQ(mincore(mapped, size, resident.data()), 0);
  munmap(mapped, size);
  const auto pages = std::count_if(resident.begin(), resident.end(), [](unsigned char flags) { return flags & 1; });
  return {pages * page, static_cast<int64_t>(resident.size()) * page};
}

TEST(OutputFile, LargeFilesNeedNotStayInMemory) {
  const ScratchFolder folder;
  std::string bytes(48 << 20, '\0');
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
  OutputFile file(folder.path() / "out", PageCache::Dropped);
  const size_t half = bytes.size() / 2;
  file.write_at(static_cast<int64_t>(half), bytes.data() + half, half);  // in any order and size
  size_t size = 1;
  for (size_t begin = 0; begin < half; begin += size, size *= 3) {
    size = std::min(size, half - begin);
    file.append(bytes.data() + begin, size);
  }
  file.finish();
  const auto [in_memory, all] = cached_bytes(file.path());
  struct statfs system;
  ASSERT_EQ(statfs(folder.path().c_str(), &system), 0);
  if (system.f_type != TMPFS_MAGIC) {  // tmpfs keeps all files in memory
    EXPECT_LT(in_memory, all / 2) << "of " << all;
  }
  EXPECT_TRUE(content(file.path()) == bytes);
}

TEST(OutputFile, SaysThatTheDiskIsFullAndLeavesNothing) {
  const ScratchFolder folder;
  const std::string bytes(5000, 'x');
  for (const PageCache cache : {PageCache::Kept, PageCache::Dropped}) {
    OutputFile file(folder.path() / "out", cache);
    std::string error;
    {
      const SmallDisk disk(4096);
      error = message<std::runtime_error>([&] { file.append(bytes.data(), bytes.size()); });
    }
    EXPECT_TRUE(has(error, "cannot write " + (folder.path() / "out").string() + ": ")) << error;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(OutputFile, RefusesAPlaceWhereNoFileCanBe) {
  const ScratchFolder folder;
  EXPECT_TRUE(has(message<InputError>([&] { OutputFile file("/proc/none/out"); }), "No such file"));
  EXPECT_TRUE(has(message<InputError>([&] { OutputFile file(folder.path()); }), "Is a directory"));
  EXPECT_NE(message<InputError>([&] { OutputFile file(""); }), "");
}

}  // namespace
}  // namespace meshtrain
