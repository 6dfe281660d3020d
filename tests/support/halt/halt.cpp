// Stops a rank of meshtrain at a chosen place, when it is in LD_PRELOAD: the process sends itself SIGSTOP.
//
//   MESHTRAIN_HALT      in:TEXT      in a phase whose text contains TEXT, while it waits for no collective
//                       group:NAME   while it waits for a collective of this group, or a message of its links
//   MESHTRAIN_HALT_LOG  a file that gets what was seen a moment before: the phase, then the collective that was issued
//                       last, as "number 12 of group tp". Nothing happens until the file exists. When the process goes
//                       on, FILE.after gets a line for that collective and for each that was issued since: one of
//                       them was the last when the process stopped. Then comes the phase as it went on.
//
// A thread looks every few microseconds, through functions that meshtrain exports for its plug-ins. It stops the
// process where the main thread has computed for a moment, or sleeps, so that the rank has shown the phase to the
// others. A signal holds the main thread from the last look until the process goes on.
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "mesh/flight_recorder.h"
#include "runtime/program/watch/phase.h"

namespace {

using meshtrain::Flight;
using meshtrain::FlightRecorder;
using meshtrain::Phase;

meshtrain::GroupFlights group_of(const Flight& flight) {
  return FlightRecorder::own().groups()[static_cast<size_t>(flight.group)];
}

std::string name_of(const Flight& flight) {
  return "number " + std::to_string(flight.in_group) + " of " + describe(label_of(group_of(flight)));
}

/// Returns what the log gets when the main thread is where it is wanted; else nothing.
std::string sight(bool in_phase, const std::string& wanted) {
  const std::string phase = Phase::current().text;
  const auto awaited = FlightRecorder::own().awaited(), last = FlightRecorder::own().last();
  const bool is_there =
      in_phase ? !awaited && phase.find(wanted) != std::string::npos : awaited && group_of(*awaited).family == wanted;
  return is_there && last ? phase + "\n" + name_of(*last) + "\n" : "";
}

/// Whether the main thread is held: it runs, is asked to stand, offers to, must stay, may leave.
enum class Hold { None, Asked, Offered, Taken, Released };
std::atomic<Hold> hold = Hold::None;

/// Offers the main thread for 2 ms, since it may own a lock that the other thread needs to look. Stays while it is
/// taken.
void offer(int) {
  const int error = errno;
  const timespec moment{.tv_sec = 0, .tv_nsec = 20'000};
  hold = Hold::Offered;
  for (int waits = 0; hold != Hold::Released; ++waits) {
    nanosleep(&moment, nullptr);
    Hold offered = Hold::Offered;
    if (waits >= 100) hold.compare_exchange_strong(offered, Hold::Released);
  }
  hold = Hold::None;
  errno = error;
}

template <class Is>
void wait_while(const Is& is) {
  while (is()) std::this_thread::sleep_for(std::chrono::microseconds(5));
}

/// The processor time of the main thread, whether it sleeps, and how it is held.
class MainThread {
 public:
  MainThread() : thread_(pthread_self()) {  // when the library is loaded: on the main thread
    pthread_getcpuclockid(thread_, &clock_);
    // A stack of its own: kernels of matrix products let the stack pointer point into their buffers, and a signal frame
    // would overwrite the data below it (runtime/program/run/stop_request.h).
    static std::array<char, 64 * 1024> stack;
    const stack_t own{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
    sigaltstack(&own, nullptr);
    struct sigaction action {};
    action.sa_handler = offer;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigaction(SIGRTMIN + 5, &action, nullptr);
  }

  /// Returns true when the main thread is held in a state for which is_right() is true. The caller lets it go.
  template <class Look>
  bool held_where(const Look& is_right) const {
    hold = Hold::Asked;
    pthread_kill(thread_, SIGRTMIN + 5);
    wait_while([] { return hold == Hold::Asked; });
    const bool right = is_right();
    Hold offered = Hold::Offered;
    if (hold.compare_exchange_strong(offered, right ? Hold::Taken : Hold::Released) && right) return true;
    wait_while([] { return hold != Hold::None; });
    return false;
  }
  static void let_go() { hold = Hold::Released; }

  double seconds() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  static bool sleeps() {
    std::ifstream file("/proc/self/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const size_t name_end = text.rfind(')');
    return name_end != std::string::npos && text.at(name_end + 2) == 'S';
  }

 private:
  pthread_t thread_;
  clockid_t clock_{};
};

/// Waits until the main thread has computed for 0.03 ms, or sleeps after 1 ms.
void let_run(const MainThread& main) {
  const double before = main.seconds();
  for (int looks = 0; main.seconds() < before + 3e-5; ++looks) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (looks >= 10 && MainThread::sleeps()) return;
  }
}

/// Stops the process, for half a second or longer, and returns when it goes on. This thread may run a little until the
/// signal reaches the process.
void stop_process() {
  using Clock = std::chrono::steady_clock;
  auto before = Clock::now(), now = before;
  kill(getpid(), SIGSTOP);
  while ((now = Clock::now()) - before < std::chrono::milliseconds(500)) {
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void look(const MainThread& main, const std::string& asked, const char* log) {
  while (access(log, F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const bool in_phase = asked.starts_with("in:");
  const std::string wanted = asked.substr(asked.find(':') + 1);
  for (;; std::this_thread::sleep_for(std::chrono::microseconds(10))) {
    const std::string seen = sight(in_phase, wanted);
    if (seen.empty()) continue;
    const int file = open(log, O_WRONLY | O_TRUNC | O_CLOEXEC);
    [[maybe_unused]] const ssize_t written = write(file, seen.data(), seen.size());
    close(file);
    if (in_phase) let_run(main);
    if (!main.held_where([&] { return sight(in_phase, wanted) == seen; })) continue;
    stop_process();
    MainThread::let_go();
    const std::string then = Phase::current().text;
    std::string after;
    for (const Flight& flight : FlightRecorder::own().flights()) {
      const std::string name = name_of(flight) + "\n";
      if (!after.empty() || seen.ends_with("\n" + name)) after += name;
    }
    after += "phase " + then + "\n";
    std::ofstream(std::string(log) + ".after") << after << "end" << std::endl;
    return;
  }
}

[[maybe_unused]] const bool from_environment = [] {
  const char *const asked = std::getenv("MESHTRAIN_HALT"), *const log = std::getenv("MESHTRAIN_HALT_LOG");
  if (asked != nullptr && log != nullptr) std::thread(look, MainThread(), std::string(asked), log).detach();
  return true;
}();

}  // namespace
