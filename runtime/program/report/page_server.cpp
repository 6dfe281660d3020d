#include "runtime/program/report/page_server.h"

#include <httplib.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "mesh/base/error.h"
#include "runtime/program/report/page.h"
#include "runtime/program/report/report_json.h"

namespace meshtrain {
namespace {

constexpr const char* kHost = "127.0.0.1";

/// The report of runs in progress. Any thread may call its functions.
class LiveReport {
 public:
  explicit LiveReport(std::vector<RunReader>& runs) : runs_(runs) {}

  /// Returns the current report as JSON; empty when its version still is `known`.
  std::string get(const std::string& known = "") {
    const std::scoped_lock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (version_ == 0 || now - read_ > std::chrono::seconds(1)) refresh();
    read_ = now;
    return known == std::to_string(version_) ? "" : report_;
  }

 private:
  void refresh() {
    bool changed = version_ == 0;
    for (RunReader& run : runs_) changed = run.refresh() || changed;
    if (!changed) return;
    std::vector<const RunRecord*> records;
    for (const RunReader& run : runs_) records.push_back(&run.record());
    report_ = report_json(records, ++version_);
  }

  std::vector<RunReader>& runs_;
  std::mutex mutex_;
  std::string report_;
  int64_t version_ = 0;
  std::chrono::steady_clock::time_point read_;
};

/// Returns true when the name that a browser asked for is one of this host's own; the port may be that of a tunnel.
bool names_this_host(std::string host) {
  if (const size_t port = host.rfind(':'); port != std::string::npos) host.resize(port);
  return host == kHost || host == "localhost";
}

/// SIGINT and SIGTERM wait to be taken by wait(), while this object lives. Threads that are started meanwhile do not
/// take them either.
class EndSignals {
 public:
  EndSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~EndSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  void wait() const {
    int number = 0;
    sigwait(&signals_, &number);
  }

 private:
  sigset_t signals_{}, before_{};
};

}  // namespace

void serve_page(std::vector<RunReader>& runs, int port, const std::function<void(int port)>& ready) {
  LiveReport report(runs);
  httplib::Server server;
  // Not the library's own SO_REUSEPORT, with which two servers share a port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.new_task_queue = [] { return new httplib::ThreadPool(4); };
  server.set_payload_max_length(1 << 16);
  server.set_keep_alive_max_count(1);  // a browser that keeps connections must not keep the threads
  server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    response.set_header("Cache-Control", "no-store");
    if (names_this_host(request.get_header_value("Host"))) return httplib::Server::HandlerResponse::Unhandled;
    response.status = 403;
    response.set_content("open 127.0.0.1 or localhost\n", "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get("/", [&](const httplib::Request&, httplib::Response& response) {
    response.set_content(make_page(report.get(), /*follows=*/true), "text/html; charset=utf-8");
  });
  server.Get("/report.json", [&](const httplib::Request& request, httplib::Response& response) {
    std::string newer = report.get(request.get_param_value("after"));
    if (newer.empty()) {
      response.status = 204;
    } else {
      response.set_content(std::move(newer), "application/json");
    }
  });

  const EndSignals signals;
  errno = 0;
  const int bound = port == 0 ? server.bind_to_any_port(kHost) : server.bind_to_port(kHost, port) ? port : -1;
  if (bound < 0) {
    const std::string reason = errno != 0 ? std::strerror(errno) : "it cannot be used";
    throw InputError("--watch " + std::to_string(port) + ": port " + std::to_string(port) + " of " + kHost + ": " +
                     reason + "; give another port, or 0 for any that is free");
  }
  std::atomic<bool> ended = false;
  std::thread listening([&] {
    server.listen_after_bind();
    if (!ended.exchange(true)) ::kill(::getpid(), SIGTERM);  // it failed: ends wait()
  });
  ready(bound);
  signals.wait();
  const bool failed = ended.exchange(true);
  server.stop();
  listening.join();
  if (failed) throw std::runtime_error(std::string("cannot serve on ") + kHost + " any longer");
}

}  // namespace meshtrain
