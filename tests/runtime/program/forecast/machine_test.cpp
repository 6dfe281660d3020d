#include "runtime/program/forecast/machine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "mesh/base/error.h"
#include "runtime/program/forecast/calibrate.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;

std::string write_machine(const testing::ScratchFolder& folder, const std::string& text) {
  const std::string path = folder.path() / "machine.yaml";
  std::ofstream(path) << text;
  return path;
}

std::string complaint_of(const std::string& name) try {
  load_machine(name);
  return "";
} catch (const InputError& error) {
  return error.what();
}

TEST(Machine, IsReadAsItWasWritten) {
  Machine machine = *machine_preset("h100");
  machine.name = "mine";
  machine.overlap = 0.25;
  machine.host.disk = 3e9;
  machine.operators = {{"aten::mm(Float 4x8, Float 8x2)", 0.25}};
  machine.collectives = {{"all_gather", 4, "own", 1024, 0.5}};
  machine.index_operators();
  const testing::ScratchFolder folder;
  const Machine read = load_machine(write_machine(folder, to_yaml(machine)));
  EXPECT_EQ(to_yaml(read), to_yaml(machine));
  Timeline timeline;
  timeline.signatures.push_back({machine.operators[0].signature});
  OperatorCall call;
  call.signature = 0;
  EXPECT_EQ(read.seconds(call, timeline), 0.25);
}

TEST(Machine, AProductHasTheRateOfItsDtype) {
  const ProductFlops flops = machine_preset("h200")->peak_flops;
  EXPECT_EQ(flops.of(c10::ScalarType::Float), 67e12) << "not that of tensor cores: products in fp32 do not use TF32";
  EXPECT_EQ(flops.of(c10::ScalarType::BFloat16), 989e12);
  EXPECT_GT(flops.of(c10::ScalarType::Float8_e4m3fn), 1.5 * 989e12);
  EXPECT_EQ((ProductFlops{0, 3, 0, 2, 0}.of(c10::ScalarType::Double)), 1) << "half of fp32's, where it is not known";
  EXPECT_EQ((ProductFlops{0, 3, 0, 2, 0}.of(c10::ScalarType::Half)), 3);
  EXPECT_EQ((ProductFlops{0, 3, 0, 0, 0}.of(c10::ScalarType::Float)), 3);
}

TEST(Machine, CopiesHaveTheRateOfTheirDirectionAndOfASlowerDisk) {
  Machine machine = *machine_preset("a100");
  EXPECT_GT(machine.host.to_gpu, 25e9);
  EXPECT_LT(machine.host.to_gpu, machine_preset("h100")->host.to_gpu);
  EXPECT_TRUE(machine.times_offload());
  machine.host = {.to_gpu = 4, .to_host = 2};
  EXPECT_FALSE(machine.times_offload());
  EXPECT_EQ(machine.seconds(CopyCall{.direction = CopyDirection::ToDevice, .bytes = 8}), 2);
  EXPECT_EQ(machine.seconds(CopyCall{.direction = CopyDirection::ToHost, .bytes = 8}), 4);
  const CopyCall from_disk{.direction = CopyDirection::ToDevice, .bytes = 8, .disk = true};
  EXPECT_EQ(machine.seconds(from_disk), 2) << "the disk's rate is not known";
  machine.host.disk = 1;
  EXPECT_EQ(machine.seconds(from_disk), 8);
}

TEST(Machine, SaysWhatOneIsWhereAFileIsNone) {
  const testing::ScratchFolder folder;
  const std::string wanted =
      "; meshtrain plan RECIPE --calibrate --out FILE measures a machine, and presets are a100, h100, h100-500w, h200, "
      "b200";
  const auto complaint_about = [&](const std::string& text) {
    const std::string path = write_machine(folder, text), complaint = complaint_of(path);
    return complaint.starts_with("--machine " + path + ": ") ? complaint.substr(path.size() + 12) : complaint;
  };
  EXPECT_EQ(complaint_about(""), "an empty file" + wanted);
  EXPECT_EQ(complaint_about("# nothing\n"), "an empty file" + wanted);
  EXPECT_EQ(complaint_about("[1]\n"), "a list is not a map of a machine's keys" + wanted);
  EXPECT_EQ(complaint_about("model: {}\ntrain: {steps: 3}\n"), "this is a recipe, not a machine file" + wanted);
  EXPECT_EQ(complaint_of("H100"),
            "--machine H100: neither a file nor a preset; did you mean h100? Presets: a100, h100, h100-500w, h200, "
            "b200");
  EXPECT_EQ(complaint_of("abacus"), "--machine abacus: neither a file nor a preset: a100, h100, h100-500w, h200, b200");
}

TEST(Machine, MeasurementsThatScatterAreWarnedAbout) {
  EXPECT_EQ(scatter_warning({}), "");
  EXPECT_EQ(scatter_warning({0.9, 0.1, 0.05}), "");
  EXPECT_EQ(scatter_warning({0.9, 0.4, 0.05}),
            "measurements are noisy: in the median of all 3, repetitions differ by 40 %: something else uses this "
            "machine; measure again when it is idle");
}

TEST(Machine, SaysWhatIsWrongWithAFile) {
  const testing::ScratchFolder folder;
  const std::string good = to_yaml(*machine_preset("a100"));
  std::string bad = good;
  bad.replace(bad.find("overlap"), 7, "overlop");
  const std::string typo = complaint_of(write_machine(folder, bad));
  EXPECT_TRUE(has(typo, "machine.yaml:") && has(typo, ": overlop: unknown key; did you mean \"overlap\"?")) << typo;
  const std::string lacking = complaint_of(write_machine(folder, "name: x\n"));
  EXPECT_TRUE(has(lacking, "memory_bandwidth: must be given")) << lacking;
  std::string idle = good;
  for (size_t at = idle.find("fp"); at < idle.find("product_share"); at = idle.find("fp", at + 2)) {
    const size_t value = idle.find(": ", at) + 2;
    idle.replace(value, idle.find('\n', value) - value, "0");
  }
  idle.replace(idle.find("bf16: ") + 6, idle.find('\n', idle.find("bf16: ")) - idle.find("bf16: ") - 6, "0");
  const std::string no_rate = complaint_of(write_machine(folder, idle));
  EXPECT_TRUE(has(no_rate, "product_flops: at least one rate must be above 0")) << no_rate;
  const std::string absent = complaint_of("h1000");
  EXPECT_EQ(
      absent,
      "--machine h1000: neither a file nor a preset; did you mean h100? Presets: a100, h100, h100-500w, h200, b200");
}

TEST(Machine, TakesMeasuredCollectivesForTheirGroupAndBytesBetween) {
  Machine machine = *machine_preset("a100");
  machine.collectives = {{"all_reduce", 2, "private", 100, 1}, {"all_reduce", 2, "private", 200, 3}};
  CollectiveCall call{Collective::Kind::AllReduce};
  call.size = 2;
  const auto seconds_for = [&](double bytes) {
    call.buffer_bytes = bytes;
    return machine.seconds(call);
  };
  EXPECT_DOUBLE_EQ(seconds_for(150), 2);
  EXPECT_DOUBLE_EQ(seconds_for(300), 5) << "beyond, along the line";
  EXPECT_DOUBLE_EQ(seconds_for(10), 1) << "never below the least measured";
  call.memory = Placement::Own;
  EXPECT_LT(seconds_for(150), 0.1) << "other memory was not measured";
}

// A file of four ranks on a host says nothing of four ranks on two hosts.
TEST(Machine, TakesMeasurementsForGroupsOnAsManyHosts) {
  Machine machine = *machine_preset("a100");
  machine.ranks_per_host = 4;
  machine.collectives = {{"all_reduce", 4, "private", 100, 1}};
  CollectiveCall call;
  call.size = 4;
  call.buffer_bytes = 100;
  EXPECT_DOUBLE_EQ(machine.seconds(call), 1);
  call.num_hosts = 2;
  EXPECT_LT(machine.seconds(call), 0.1);
}

TEST(Machine, AGroupAcrossHostsSharesTheWaysOut) {
  Machine machine = *machine_preset("h100");
  machine.on_host = {400e9, 0};
  machine.among_hosts = {50e9, 0};
  CollectiveCall call{Collective::Kind::AllGather};
  call.size = 16;
  call.num_hosts = 2;
  call.buffer_bytes = call.sent_bytes = 1e12;
  const double eight_ways = machine.seconds(call);
  call.size = call.num_hosts = 2;
  EXPECT_NEAR(machine.seconds(call) / eight_ways, 8, 1.5);
}

}  // namespace
}  // namespace meshtrain
