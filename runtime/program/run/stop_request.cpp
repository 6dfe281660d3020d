#include "runtime/program/run/stop_request.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>

namespace meshtrain {
namespace {

constexpr std::array<int, 4> kSignals = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT};
std::atomic<int> stop_signal = 0;  // lock-free, as a signal handler sets it
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  int none = 0;
  const bool is_first = stop_signal.compare_exchange_strong(none, signal);
  const bool insists = !is_first && (signal == SIGINT || signal == SIGTERM);
  if (insists) std::signal(signal, SIG_DFL), std::raise(signal);
}

void wait_for_signals(std::stop_token end) {
  pthread_setname_np(pthread_self(), "signals");
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any().wait(lock, end, [] { return false; });
}

sigset_t all_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kSignals) sigaddset(&set, signal);
  return set;
}

}  // namespace

StopRequest::StopRequest() {
  stop_signal = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (int signal : kSignals) sigaction(signal, &action, nullptr);
  receiver_ = std::jthread(wait_for_signals);  // construct before blocking: the thread inherits the mask of this one
  const sigset_t set = all_signals();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

StopRequest::~StopRequest() {
  receiver_.request_stop();
  receiver_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int StopRequest::signal() const {
  return stop_signal;
}

std::string how_to_stop() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr || std::getenv("MESHTRAIN_LAUNCHER") != nullptr) return "";
  const std::string parent = std::to_string(getppid());
  std::string name;
  std::getline(std::ifstream("/proc/" + parent + "/comm"), name);
  const bool is_mpirun = name == "mpirun" || name == "mpiexec" || name == "orterun";
  return "Ctrl-C ends mpirun's ranks without a checkpoint; to stop after a step with one: kill -USR1 " +
         (is_mpirun ? parent : "mpirun's process");
}

}  // namespace meshtrain
