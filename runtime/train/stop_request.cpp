#include "runtime/train/stop_request.h"

#include <array>
#include <csignal>

namespace meshtrain {
namespace {

constexpr std::array<int, 4> kSignals = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT};
volatile std::sig_atomic_t stop_requested = 0;

void note(int signal) {
  const bool insists = stop_requested != 0 && (signal == SIGINT || signal == SIGTERM);
  stop_requested = 1;
  if (insists) std::signal(signal, SIG_DFL), std::raise(signal);
}

}  // namespace

StopRequest::StopRequest() {
  stop_requested = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (int signal : kSignals) sigaction(signal, &action, nullptr);
}

StopRequest::~StopRequest() {
  for (int signal : kSignals) std::signal(signal, SIG_DFL);
}

bool StopRequest::requested() const {
  return stop_requested != 0;
}

}  // namespace meshtrain
