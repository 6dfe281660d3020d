// Files on failing disks and on file systems with fewer features.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/files/file_lock.h"
#include "mesh/base/files/output_file.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/telemetry/json_lines.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::content;
using testing::has;
using testing::inject_faults;
using testing::message;
using testing::write_file;

class DiskFaults : public ::testing::Test {
 protected:
  ~DiskFaults() override { inject_faults(""); }

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  /// Replaces the file "out", which holds "before", with 40 MiB, past the page cache.
  void replace_out() const {
    OutputFile file(path("out"), PageCache::Dropped);
    const std::string block(size_t{8} << 20, 'x');
    for (int i = 0; i < 5; ++i) file.append(block.data(), block.size());
    file.finish();
  }

  /// Returns the names of the files beside the one being written.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  testing::ScratchFolder folder_;
};

TEST_F(DiskFaults, AnyErrorOfTheDiskLeavesWhatWasThere) {
  const std::string reasons[][2] = {{"EIO", "Input/output error"},
                                    {"ENOSPC", "No space left on device"},
                                    {"ENODATA", "No data available"},
                                    {"ENOLINK", "Link has been severed"},
                                    {"ESTALE", "Stale file handle"}};
  for (const std::string call : {"sync_file_range", "fsync", "pwrite", "close", "rename"}) {
    for (const auto& [error, reason] : reasons) {
      write_file(path("out"), "before");
      inject_faults(call + ":out.partial:" + error + (call == "pwrite" ? ":2" : ""));
      const std::string said = message<std::runtime_error>([&] { replace_out(); });
      EXPECT_EQ(said, "cannot write " + path("out").string() + ": " + reason) << call << " " << error;
      EXPECT_EQ(content(path("out")), "before") << call << " " << error;
      EXPECT_EQ(names(), std::vector<std::string>{"out"}) << call << " " << error;
    }
  }
}

TEST_F(DiskFaults, AFileSystemThatCannotSynchroniseIsNoError) {
  for (const std::string call : {"sync_file_range", "fsync"}) {
    for (const std::string error : {"ENOSYS", "EINVAL"}) {
      inject_faults(call + "::" + error);
      replace_out();
      EXPECT_EQ(std::filesystem::file_size(path("out")), size_t{40} << 20) << call << " " << error;
    }
  }
}

// A file server may do a rename, lose the answer and get the request again.
TEST_F(DiskFaults, ARenameWhoseAnswerWasLostIsDone) {
  for (const std::string error : {"ENOENT", "ESTALE"}) {
    write_file(path("out"), "before");
    inject_faults("rename:out.partial:+" + error);
    write_atomically(path("out"), "after");
    EXPECT_EQ(content(path("out")), "after") << error;
    EXPECT_EQ(names(), std::vector<std::string>{"out"}) << error;
  }
}

// The names of files there cannot be listed, so the files cannot be made durable one by one.
TEST_F(DiskFaults, AFolderThatCannotBeReadIsWrittenIn) {
  std::filesystem::create_directory(path("drop"));
  for (const auto& folder : {path(""), path("drop")}) ::chmod(folder.c_str(), folder == path("") ? 0755 : 01733);
  const bool is_root = ::geteuid() == 0;
  if (is_root && ::seteuid(65534) != 0) GTEST_SKIP() << "root cannot become another user here";
  const std::string said = message<std::exception>([&] {
    make_folders(path("drop/new"));
    write_atomically(path("drop/new/out"), "text");
    write_atomically(path("drop/out"), "text");
  });
  ASSERT_EQ(is_root ? ::seteuid(0) : 0, 0);
  EXPECT_EQ(said, "");
  ::chmod(path("drop").c_str(), 0755);
  EXPECT_EQ(content(path("drop/out")), "text");
  EXPECT_EQ(content(path("drop/new/out")), "text");
}

TEST_F(DiskFaults, AFileHasOneWriter) {
  {
    OutputFile first(path("out"));
    first.append("first", 5);
    EXPECT_TRUE(has(message<InputError>([&] { OutputFile second(path("out")); }), "another process is writing it"));
    first.append(" writer", 7);
    first.finish();
  }
  EXPECT_EQ(content(path("out")), "first writer");
  write_file(path("out.partial"), "left behind by one that was killed");
  write_atomically(path("out"), "second");
  EXPECT_EQ(content(path("out")), "second");
}

TEST_F(DiskFaults, WithoutLocksEachWriterHasAFileOfItsOwn) {
  inject_faults("flock:out.partial:ENOLCK");
  {
    OutputFile first(path("out")), second(path("out"));
    first.append("first, and longer", 17);
    second.append("second", 6);
    first.finish();
    EXPECT_EQ(content(path("out")), "first, and longer");
    second.finish();
  }
  EXPECT_EQ(content(path("out")), "second");
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
}

TEST_F(DiskFaults, ALockIsThatOfTheFileThatBearsTheName) {
  const auto lock = std::make_unique<LockFile>(path("lock"));
  EXPECT_TRUE(LockFile(path("lock")).is_taken());
  std::filesystem::remove(path("lock"));
  EXPECT_FALSE(LockFile(path("lock")).is_taken());
}

TEST_F(DiskFaults, ARunDirectoryWithoutLocksIsUsedWithAWarning) {
  for (const std::string error : {"ENOSYS", "ENOLCK", "EIO"}) {
    inject_faults("flock:/lock:" + error);
    const RunDirectory directory(path("run"), /*resume=*/false);
    EXPECT_TRUE(has(directory.warning(), path("run/lock").string() + " cannot be locked (")) << error;
  }
  inject_faults("");
  const RunDirectory directory(path("run"), /*resume=*/false);
  EXPECT_EQ(directory.warning(), "");
  EXPECT_TRUE(has(message<InputError>([&] { RunDirectory(path("run"), false); }), "is in use by another run"));
}

TEST_F(DiskFaults, CheckpointsThatCannotBeReadAreNotNone) {
  std::filesystem::create_directories(path("checkpoints/step-00000003"));
  const CheckpointFolder folder(path("checkpoints"));
  inject_faults("opendir:checkpoints:EACCES");
  EXPECT_EQ(message<std::runtime_error>([&] { folder.steps(); }),
            "cannot read the checkpoints in " + path("checkpoints").string() + ": Permission denied");
  inject_faults("");
  EXPECT_EQ(folder.steps(), std::vector<int64_t>{3});
  std::filesystem::create_symlink(path("unmounted"), path("link"));
  EXPECT_EQ(message<std::runtime_error>([&] { CheckpointFolder(path("link")).steps(); }),
            "cannot read the checkpoints in " + path("link").string() +
                ": No such file or directory, the target of this link");
  write_file(path("file"), "");
  EXPECT_EQ(message<std::runtime_error>([&] { CheckpointFolder(path("file")).steps(); }),
            "cannot read the checkpoints in " + path("file").string() + ": Not a directory");
  EXPECT_EQ(CheckpointFolder(path("file/checkpoints")).steps(), std::vector<int64_t>{});
  EXPECT_EQ(CheckpointFolder(path("none")).steps(), std::vector<int64_t>{});
}

TEST_F(DiskFaults, MetricsThatCannotBeReadAreNotCut) {
  const std::string lines = "{\"step\":1}\n{\"step\":2}\n";
  for (const std::string fault : {"open:metrics.jsonl:EACCES:1", "read:metrics.jsonl:EIO"}) {
    write_file(path("metrics.jsonl"), lines);
    inject_faults(fault);
    EXPECT_TRUE(has(message<std::runtime_error>([&] { JsonLines file(path("metrics.jsonl"), 2); }),
                    "cannot read " + path("metrics.jsonl").string()))
        << fault;
    inject_faults("");
    EXPECT_EQ(content(path("metrics.jsonl")), lines) << fault;
  }
}

TEST_F(DiskFaults, LinesThatCannotBeMadeDurableAreAnError) {
  write_file(path("metrics.jsonl"), "");
  JsonLines file(path("metrics.jsonl"), 0);
  file.append("{\"step\":1}");
  const std::filesystem::path folder = path("metrics.jsonl").parent_path();
  for (const std::string& fault : {std::string("fdatasync:metrics.jsonl:EIO"), "fsync:" + folder.string() + ":EIO"}) {
    inject_faults(fault);
    EXPECT_TRUE(has(message<std::runtime_error>([&] { file.sync(); }), ": Input/output error")) << fault;
  }
  inject_faults("fdatasync:metrics.jsonl:EINVAL");
  file.sync();
}

}  // namespace
}  // namespace meshtrain
