#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

/// A port of 127.0.0.1 that is taken while this object lives, with SO_REUSEADDR, as a server would take it.
class TakenPort {
 public:
  TakenPort() {
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 1), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(address.sin_port);
  }
  ~TakenPort() { ::close(socket_); }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;

  int number() const { return number_; }

 private:
  int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int number_ = 0;
};

using nlohmann::json;

/// Returns the report in a page.
json report_in(const std::string& page) {
  const std::string before = "id=\"report\">";
  const size_t begin = page.find(before) + before.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

class ReportProgram : public ::testing::Test {
 protected:
  ReportProgram() {
    write_file(run / "metrics.jsonl", "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":3.25}\n");
    write_file(run / "recipe.yaml", "name: mine\ntrain:\n  steps: 9\n");
  }

  ScratchFolder folder;
  std::filesystem::path run = folder.path() / "mine";
};

TEST_F(TrainProgram, ItsRunIsReported) {
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=2"}).status, 0);
  ASSERT_EQ(train(2, {"--mesh", "tp=2", "--resume", "--set", "train.steps=6"}).status, 0);
  const Ending text = run_meshtrain({"report", run_dir});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* part : {": meshes dp=2,cp=1,tp=1 (steps 1 to 4), then dp=1,cp=1,tp=2 (from step 5)\n",
                           "  steps                    6 of 6  (done)\n", "  starts                   2\n",
                           "train.steps: 6, was 4", "parallel.mesh.tp: 2, was 1", "newest of step"}) {
    EXPECT_TRUE(has(text.out, part)) << part << " is not in\n" << text.out;
  }
  const Ending page = run_meshtrain({"report", run_dir, "--out", path("report.html")});
  EXPECT_EQ(page.status, 0) << page.err;
  const std::string html = content(path("report.html"));
  const json run = report_in(html).at("runs").at(0);
  for (const char* series : {"loss", "grad_norm", "learning_rate", "tokens_per_second"}) {
    EXPECT_EQ(run.at("series").at(series).at("columns"), json::array({1, 2, 3, 4, 5, 6})) << series;
  }
  EXPECT_FALSE(run.at("time").at("parts").empty());
  EXPECT_EQ(run.at("mesh"), json::parse(R"([["dp",1],["cp",1],["tp",2]])"));
  EXPECT_EQ(run.at("hosts").at("of_ranks"), json::array({0, 0}));
  EXPECT_EQ(run.at("starts").size(), 2u);
  EXPECT_EQ(run.at("starts").at(1).at("ended"), "done");
  EXPECT_FALSE(run.at("starts").at(1).at("changes").empty());
  EXPECT_FALSE(run.at("checkpoints").empty());
  EXPECT_EQ(run.at("problems"), json::array());
  EXPECT_FALSE(has(html, "https://") || has(html, " src=")) << "the page must need nothing else";
  EXPECT_EQ(html.find("http://"), html.rfind("http://www.w3.org/2000/svg"))
      << "the only address must be SVG's name space";
}

TEST_F(ReportProgram, SeveralRunsAreDrawnTogetherAndTheirRecipesDifferenced) {
  const std::filesystem::path other = folder.path() / "another" / "mine";  // of the same name
  write_file(other / "metrics.jsonl", "{\"step\":1,\"loss\":4}\n");
  write_file(other / "recipe.yaml", "name: mine\ntrain:\n  steps: 12\n");
  const Ending text = run_meshtrain({"report", run, other});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(has(text.out, "train.steps              9 | 12")) << text.out;
  const std::filesystem::path out = folder.path() / "report.html";
  EXPECT_EQ(run_meshtrain({"report", run, other, "--out", out}).status, 0);
  const json report = report_in(content(out)), &runs = report.at("runs");
  EXPECT_EQ(runs.at(0).at("name"), run.string());
  EXPECT_EQ(runs.at(1).at("name"), other.string());
  EXPECT_EQ(runs.at(0).at("series").at("loss").at("mean"), json::array({3.5, 3.25}));
  EXPECT_EQ(runs.at(1).at("series").at("loss").at("mean"), json::array({4}));
  EXPECT_EQ(report.at("differences"), json::parse(R"([["train.steps","9","12"]])"));
}

TEST_F(ReportProgram, WhatCannotBeReportedIsRefused) {
  const std::string gone = folder.path() / "gone";
  EXPECT_EQ(only_complaint(run_meshtrain({"report", gone})), "there is no run directory " + gone);
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"report", run, folder.path()})),
                  folder.path().string() + " is not a run directory: it has no metrics.jsonl"));
  EXPECT_EQ(only_complaint(run_meshtrain({"report", run, "--out", "a.html", "--watch", "0"})),
            "give --out or --watch, not both");
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"report", run, "--watch", "70000"})), "--watch"));
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"report"})), "run_dir is required"));
  const std::string out = folder.path() / "gone" / "report.html";
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"report", run, "--out", out})), "cannot write " + out));
}

TEST_F(ReportProgram, APortInUseIsRefused) {
  const TakenPort taken;
  const std::string port = std::to_string(taken.number());
  EXPECT_EQ(only_complaint(run_meshtrain({"report", run, "--watch", port})),
            "--watch " + port + ": port " + port +
                " of 127.0.0.1: Address already in use; give another port, or 0 for any that is free");
}

TEST_F(ReportProgram, WatchFollowsTheRunWhateverBecomesOfItsFiles) {
  const int port = TakenPort().number();
  Program program({build_folder() + "/meshtrain", "report", run, "--watch", std::to_string(port)});
  httplib::Client client("127.0.0.1", port);
  const auto get = [&](const std::string& path, const httplib::Headers& headers = {}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // it reads files at most once a second
    const auto answer = client.Get(path, headers);
    return answer ? *answer : httplib::Response{};
  };
  const auto losses = [](const json& report) { return report.at("runs").at(0).at("series").at("loss").at("mean"); };
  httplib::Response first;
  for (int tries = 0; tries < 20 && first.status != 200; ++tries) first = get("/");
  ASSERT_EQ(first.status, 200);
  EXPECT_EQ(report_in(first.body).at("version"), 1);
  EXPECT_EQ(losses(report_in(first.body)), json::array({3.5, 3.25}));
  EXPECT_EQ(get("/report.json?after=1").status, 204) << "nothing has changed";

  std::ofstream(run / "metrics.jsonl", std::ios::app) << "{\"step\":3,\"loss\":3}\n{\"step\":4,\"lo";
  const httplib::Response second = get("/report.json?after=1");
  EXPECT_EQ(second.status, 200);
  EXPECT_EQ(losses(json::parse(second.body)), json::array({3.5, 3.25, 3}));

  std::ofstream(run / "metrics.jsonl") << "{\"step\":1,\"loss\":7}\n\xff\xfe\n";  // begun anew, damaged
  std::ofstream(run / "recipe.yaml") << "train: [";
  const httplib::Response third = get("/report.json?after=2");
  EXPECT_EQ(losses(json::parse(third.body)), json::array({7}));
  EXPECT_TRUE(has(third.body, "1 damaged line of metrics.jsonl"));

  std::filesystem::remove_all(run);
  EXPECT_EQ(get("/").status, 200);
  EXPECT_EQ(get("/other").status, 404);
  for (const char* address : {"/", "/report.json"}) {
    EXPECT_EQ(get(address, {{"Host", "elsewhere.example"}}).status, 403) << "another site may resolve to 127.0.0.1";
  }
  EXPECT_EQ(get("/", {{"Host", "localhost:9999"}}).status, 200) << "through a tunnel";

  program.signal(SIGINT);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.out,
            "http://127.0.0.1:" + std::to_string(port) + " shows the report and follows the run; Ctrl-C ends it\n");
}

}  // namespace
}  // namespace meshtrain::testing
