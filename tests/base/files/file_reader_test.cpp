#include "mesh/base/files/file_reader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/download.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;

TEST(FileReader, ReadsWhereItIsAsked) {
  const ScratchFolder folder;
  write_file(folder.path() / "a", "0123456789");
  FileReader first(folder.path() / "a");
  const FileReader file(std::move(first));
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(file.read(3, 4).text(), "3456");
  EXPECT_EQ(file.read(10, 0).size(), 0);
  EXPECT_THROW(file.read(7, 4), std::out_of_range);
  EXPECT_EQ(read_all(folder.path() / "a").text(), "0123456789");
  std::string large(size_t{3} << 20, 'x');
  large.back() = 'y';
  write_file(folder.path() / "large", large);
  std::string blocks;
  const FileReader reader(folder.path() / "large");
  reader.for_each_block(5, reader.size() - 5, [&](std::string_view block) { blocks += block; });
  EXPECT_TRUE(blocks == large.substr(5));
}

TEST(FileReader, RefusesWhatIsNoFile) {
  const ScratchFolder folder;
  const auto open = [](const std::filesystem::path& path) {
    return message<InputError>([&] { FileReader file(path); });
  };
  EXPECT_TRUE(has(open(folder.path() / "none"), "none: No such file"));
  EXPECT_TRUE(has(open(folder.path()), "it is a folder"));
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(has(open(folder.path() / "pipe"), "not a regular file"));
}

TEST(FileReader, RefusesWhatStandsForContent) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "weights";
  const auto open = [&](const std::string& bytes) {
    write_file(file, bytes);
    return message<InputError>([&] { FileReader reader(file); });
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2471645608\n";
  EXPECT_EQ(open(pointer), "cannot read " + file.string() +
                               ": it is a pointer of Git LFS, not the file's content: run git lfs pull in its folder");
  EXPECT_TRUE(has(open("/annex/objects/SHA256E-s5--a.bin\n"), "a pointer of git-annex"));
  EXPECT_EQ(open(pointer + std::string(1024, 'x')), "") << "a text about pointers";
  EXPECT_EQ(open("the version https://git-lfs.github.com/spec/v1"), "");
  write_file(file.string() + ".aria2", "state");
  EXPECT_TRUE(has(open(std::string(2000, '\0')), "weights.aria2 next to it shows that its download is not complete"));
}

TEST(FileReader, SaysWhereALinkLeads) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "weights";
  const auto open = [&](const std::string& target) {
    std::filesystem::remove(file);
    std::filesystem::create_symlink(target, file);
    return message<InputError>([&] { FileReader reader(file); });
  };
  EXPECT_EQ(open("gone"),
            "cannot read " + file.string() + ": it is a link to gone, which does not exist: repair it, or remove it");
  EXPECT_TRUE(has(open("weights"), "a link to weights, which leads back to it"));
  EXPECT_TRUE(has(open("../../blobs/4d7a"), "which does not exist: download the folder again, or copy it with"));
  EXPECT_TRUE(has_entry(file));
  EXPECT_FALSE(has_entry(folder.path() / "none"));
}

TEST(FileReader, AFileThatIsCutShortIsAnErrorWithItsName) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "a";
  write_file(path, std::string(100'000, 'x'));
  const FileReader file(path);
  std::filesystem::resize_file(path, 1000);
  EXPECT_EQ(file.read(0, 1000).size(), 1000);
  EXPECT_EQ(message<InputError>([&] { file.read(0, 100'000); }),
            "cannot read " + path.string() +
                ": it has 1000 bytes, and had 100000 when it was opened: it was cut short since");
}

TEST(FileReader, MoreFilesThanAProcessMayOpen) {
  const ScratchFolder folder;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low{std::min<rlim_t>(limit.rlim_cur, 1024), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<FileReader> files;
  for (int i = 0; i < 1200; ++i) {
    const std::filesystem::path path = folder.path() / std::to_string(i);
    write_file(path, "file " + std::to_string(i));
    files.emplace_back(path);
  }
  for (size_t i = 0; i < files.size(); ++i) EXPECT_EQ(files[i].read(5, files[i].size() - 5).text(), std::to_string(i));
  const std::filesystem::path last = files.back().path();
  write_file(folder.path() / "new", "file 1199");
  std::filesystem::last_write_time(folder.path() / "new", std::filesystem::last_write_time(last));
  std::filesystem::rename(folder.path() / "new", last);
  EXPECT_EQ(files.back().read(0, 4).text(), "file") << "the same file, on a file system whose numbers do not last";
  std::filesystem::last_write_time(last, std::filesystem::last_write_time(last) + std::chrono::seconds(1));
  EXPECT_EQ(message<InputError>([&] { files.back().read(0, 1); }),
            "cannot read " + last.string() + ": another file has replaced it since it was opened");
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace meshtrain
