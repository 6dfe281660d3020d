// Token files that take the place of others, by a process that is killed at each of its calls.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <set>

#include "mesh/base/error.h"
#include "runtime/text/prepare/prepare.h"
#include "runtime/training/data/megatron_index.h"
#include "runtime/training/data/packed_writer.h"
#include "runtime/training/data/token_sidecar.h"
#include "tests/support/faults/faults.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

/// Runs `body` in a copy of this process, in which `faults` happen. Returns false when it was killed.
bool survives(const std::string& faults, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    inject_faults(faults);
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << faults;
  return !WIFSIGNALED(status);
}

/// Calls `replace` in a process that is killed before or after each call that renames or syncs, and `check` then.
void kill_at_each_call(const std::function<void()>& prepare, const std::function<void()>& replace,
                       const std::function<void(const std::string&)>& check) {
  for (const char* call : {"rename", "fsync"}) {
    for (const char* when : {"KILL", "+KILL"}) {
      int num_kills = 0;
      for (bool killed = true; killed; ++num_kills) {
        prepare();
        const std::string fault = std::string(call) + "::" + when + ":" + std::to_string(num_kills) + ":1";
        killed = !survives(fault, replace);
        check(fault);
        ASSERT_LT(num_kills, 40);
      }
      EXPECT_GE(num_kills, 3) << call;
    }
  }
}

void write_packed(const fs::path& path, int64_t first, int samples) {
  PackedWriter writer(path, "uint16", 5, 0, true);
  for (int i = 0; i < samples; ++i) writer.add({first, first + 1, first + 2}, {0, 1, 1});
  TokenSidecar origin;
  origin.command = std::to_string(first);
  writer.finish(origin);
}

TEST(Replacement, OfPackedTokensIsWholeOrRefused) {
  const ScratchFolder scratch;
  const fs::path tokens = scratch.path() / "a.bin";
  const auto all = [&] {
    return content(tokens) + "|" + content(scratch.path() / "a.mask") + "|" + content(scratch.path() / "a.idx");
  };
  write_packed(tokens, 100, 3);
  const std::string after = all();
  write_packed(tokens, 10, 3);
  const std::string before = all();
  std::set<std::string> states;
  kill_at_each_call([&] { write_packed(tokens, 10, 3); }, [&] { write_packed(tokens, 100, 3); },
                    [&](const std::string& fault) {
                      std::optional<TokenSidecar> sidecar;
                      const std::string described = message<InputError>([&] { sidecar = read_sidecar(tokens); });
                      const std::string indexed = message<InputError>(
                          [&] { MegatronIndex index(tokens, static_cast<int64_t>(fs::file_size(tokens))); });
                      if (described.empty() && indexed.empty()) {
                        ASSERT_TRUE(sidecar) << fault;
                        EXPECT_TRUE(all() == before || all() == after) << fault;
                        EXPECT_EQ(sidecar->command, all() == before ? "10" : "100") << fault;
                        states.insert(all() == before ? "old" : "new");
                        return;
                      }
                      states.insert(indexed.empty() ? "refused by the sidecar" : "refused without an index");
                      for (const std::string& error : {described, indexed}) {
                        EXPECT_TRUE(error.empty() || has(error, "prepare the tokens again")) << error;
                      }
                    });
  EXPECT_EQ(states, (std::set<std::string>{"new", "old", "refused by the sidecar", "refused without an index"}));
}

TEST(Replacement, OfTokensAndSidecarIsWholeOrRefused) {
  const ScratchFolder scratch;
  const fs::path tokens = scratch.path() / "a.bin";
  write_file(scratch.path() / "old.txt", "abcd");
  write_file(scratch.path() / "new.txt", "wxyz");
  const auto prepare = [&](const char* input) {
    prepare_bytes({scratch.path() / input}, tokens, "uint16", std::nullopt, {}, input);
  };
  std::set<std::string> states;
  kill_at_each_call([&] { prepare("old.txt"); }, [&] { prepare("new.txt"); },
                    [&](const std::string& fault) {
                      std::optional<TokenSidecar> sidecar;
                      const std::string error = message<InputError>([&] { sidecar = read_sidecar(tokens); });
                      if (!error.empty()) {
                        states.insert("refused");
                        EXPECT_TRUE(has(error, "prepare the tokens again")) << error;
                        return;
                      }
                      ASSERT_TRUE(sidecar) << fault;
                      states.insert(sidecar->command);
                      EXPECT_EQ(content(tokens)[0], sidecar->command == "old.txt" ? 'a' : 'w') << fault;
                    });
  EXPECT_EQ(states, (std::set<std::string>{"new.txt", "old.txt", "refused"}));
}

TEST(Replacement, OnlyRenamesOnceItHasBegun) {
  const ScratchFolder scratch;
  const fs::path tokens = scratch.path() / "a.bin", log = scratch.path() / "log";
  write_packed(tokens, 10, 3);
  EXPECT_TRUE(survives("", [&] {
    log_calls(log);
    write_packed(tokens, 100, 3);
  }));
  std::ifstream lines(log);
  int num_renames = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("rename ")) ++num_renames;
    if (num_renames == 0) continue;
    EXPECT_TRUE(!line.starts_with("fsync ") || fs::is_directory(line.substr(6))) << line;
    EXPECT_FALSE(has(line, "write ")) << line;
  }
  EXPECT_EQ(num_renames, 6);
}

}  // namespace
}  // namespace meshtrain::testing
