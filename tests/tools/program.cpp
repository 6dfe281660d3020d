#include "tests/tools/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace meshtrain::testing {
namespace {

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

bool is_launchers(const std::string& variable) {
  for (const char* prefix : {"OMPI_", "PMI", "MV2_", "MPI_", "SLURM_", "FLUX_", "JSM_", "PALS_", "TORCHELASTIC_"}) {
    if (variable.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

bool is_about_late_ranks(const std::string& line) {
  return line.starts_with("meshtrain: warning: rank ") &&
         (line.find(" to start: ") != std::string::npos || line.find(kSlowRank) != std::string::npos);
}

}  // namespace

Program::Program(std::vector<std::string> words, const std::vector<std::string>& environment) {
  const std::string out = folder_.path() / "out", err = folder_.path() / "err";
  std::vector<std::string> variables = environment;
  variables.emplace_back("MESHTRAIN_PROGRESS=86400");  // a busy machine makes short commands long
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!is_launchers(*variable)) variables.emplace_back(*variable);
  }

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);
  const int failed =
      posix_spawn(&process_, words[0].c_str(), &files, nullptr, pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) throw std::runtime_error("cannot start " + words[0]);
}

Program::~Program() {
  if (process_ > 0) wait();
}

void Program::signal(int number) const {
  kill(process_, number);
}

bool Program::has_ended() const {
  siginfo_t ended = {};
  return waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0;
}

Ending Program::wait() {
  int state = 0;
  waitpid(std::exchange(process_, 0), &state, 0);
  Ending ending;
  ending.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  ending.out = content(folder_.path() / "out");
  std::istringstream lines(content(folder_.path() / "err"));
  for (std::string line; std::getline(lines, line);) {
    std::string& part = is_about_late_ranks(line) ? ending.late : ending.err;
    part += line;
    if (!lines.eof()) part += '\n';
  }
  return ending;
}

Ending run_program(std::vector<std::string> words, const std::vector<std::string>& environment) {
  return Program(std::move(words), environment).wait();
}

Ending run_meshtrain(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::vector<std::string> words = {build_folder() + "/meshtrain"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_program(std::move(words), environment);
}

Ending run_meshtrain_on_ranks(int ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {source_folder() + "/tools/ranks", std::to_string(ranks),
                                    build_folder() + "/meshtrain"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_program(std::move(words));
}

int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

std::string only_complaint(const Ending& ending, int status) {
  const std::string start = "meshtrain: ";
  EXPECT_EQ(ending.status, status) << ending.err;
  EXPECT_EQ(ending.out, "");
  const bool is_one_line = ending.err.rfind(start, 0) == 0 && ending.err.find('\n') == ending.err.size() - 1;
  EXPECT_TRUE(is_one_line) << ending.err;
  return is_one_line ? ending.err.substr(start.size(), ending.err.size() - start.size() - 1) : ending.err;
}

}  // namespace meshtrain::testing
