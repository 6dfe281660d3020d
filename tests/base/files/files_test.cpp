#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/download.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/output_file.h"
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
  EXPECT_TRUE(has(open(std::string(2000, '\0')), "weights.aria2 beside it says that its download has not ended"));
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

TEST(Content, IsToldByTheFirstBytes) {
  EXPECT_EQ(describe_content(""), ": it is an empty file: download it again");
  EXPECT_EQ(describe_content("\n <!DOCTYPE html>\n<html>"),
            ": it is a page of HTML, not the file itself: download it again");
  EXPECT_EQ(content_of("\xEF\xBB\xBF<HTML lang=\"en\">"), Content::Html);
  EXPECT_EQ(content_of("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>"), Content::ServerError);
  EXPECT_EQ(content_of("<?xml version=\"1.0\"?><book/>"), Content::Unknown);
  EXPECT_EQ(content_of(std::string(300, '\0')), Content::Zeros);
  EXPECT_EQ(describe_content("\x1f\x8b\x08"), ": it is a file compressed by gzip: decompress it first");
  EXPECT_EQ(describe_content("PK\x03\x04"), ": it is a ZIP archive, as of NumPy or PyTorch");
  EXPECT_EQ(describe_content("Entry not found"), "");
  EXPECT_EQ(content_of("GGUF is a format, ARROW1 another"), Content::Unknown);
  EXPECT_EQ(describe_text_for_binary("Entry not found\n"),
            ": it is a text that begins \"Entry not found\", not the file itself: download it again");
  EXPECT_EQ(describe_text_for_binary("\x01\x02"), "");
}

TEST(Download, IsUnfinishedByItsName) {
  for (const char* name : {"a.incomplete", "a.jsonl.gz.part", "a.crdownload", "a.aria2"}) {
    EXPECT_TRUE(is_unfinished_download(name)) << name;
  }
  for (const char* name : {"part", "a.parts", "incomplete.txt", "a.gz"}) {
    EXPECT_FALSE(is_unfinished_download(name)) << name;
  }
  const ScratchFolder folder;
  EXPECT_EQ(unfinished_hub_download(folder.path()), "");
  write_file(folder.path() / ".cache/huggingface/download/a.metadata", "x");
  EXPECT_EQ(unfinished_hub_download(folder.path()), "");
  const std::filesystem::path open = folder.path() / ".cache/huggingface/download/data/b.4d7a.incomplete";
  write_file(open, "x");
  EXPECT_EQ(unfinished_hub_download(folder.path()), open);
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
                ": it has 1000 bytes, and had 100000 when it was opened: it was cut short meanwhile");
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
            "cannot read " + last.string() + ": another file has taken its place meanwhile");
  setrlimit(RLIMIT_NOFILE, &limit);
}

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
