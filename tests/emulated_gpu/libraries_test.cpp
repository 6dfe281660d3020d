// The libraries of a machine with a GPU: opened in the right order and from the right folder by a program that a user
// starts without LD_LIBRARY_PATH.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

class Libraries : public TrainProgram {
 protected:
  void SetUp() override { setenv("MESHTRAIN_EMULATED_GPUS", "1", 1); }

  static std::filesystem::path build() { return build_folder(); }
  static std::filesystem::path meshtrain() { return build() / "meshtrain"; }

  /// Trains one step with cuDNN's attention, by `program` in a plain environment plus `environment`.
  Ending train_with_cudnn(const std::filesystem::path& program, const Words& environment = {}) const {
    Words words = {"/usr/bin/env", "-u", "LD_LIBRARY_PATH"};
    words.insert(words.end(), environment.begin(), environment.end());
    words.insert(words.end(), {program, "train", recipe, "--run-dir", run_dir, "--set", "device=cuda"});
    for (const char* setting : {"train.precision=bf16", "train.sequence_length=512", "data.layout=stream",
                                "train.global_batch=1", "train.steps=1"}) {
      words.insert(words.end(), {"--set", setting});
    }
    return Program(words).wait();
  }

  /// Returns a copy of the program and of the folders that tools/setup --cuda makes, with links to the same libraries.
  std::filesystem::path copy_of_everything() const {
    const std::filesystem::path copy = path("copy");
    std::filesystem::create_directories(copy);
    for (const char* name : {"meshtrain", "libmeshtrain_cuda.so", "torch", "nvidia"}) {
      std::filesystem::copy(build() / name, copy / name,
                            std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    }
    return copy;
  }
};

// The program starts with LibTorch's libraries for the CPU and CUDA's runtime, which they link.
TEST_F(Libraries, OfCudaAreOpenedLater) {
  const Ending ending = Program({meshtrain()}, {"LD_TRACE_LOADED_OBJECTS=1"}).wait();
  EXPECT_TRUE(has(ending.out, "/emulated/torch/lib/libtorch_cpu.so")) << ending.out;
  EXPECT_TRUE(has(ending.out, "/emulated/torch/lib/../../nvidia/cu13/lib/libcudart.so.13")) << ending.out;
  for (const char* library : {"libtorch_cuda", "libc10_cuda", "libnccl", "libnvrtc"})
    EXPECT_FALSE(has(ending.out, library)) << ending.out;
}

TEST_F(Libraries, CudnnFindsTheRuntimeCompilerInAPlainEnvironment) {
  const Ending ending = train_with_cudnn(meshtrain());
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out + ending.err, "attention by cudnn: 512 queries")) << ending.out << ending.err;
}

TEST_F(Libraries, CudnnIsLeftToHopper) {
  const Ending ending = train_with_cudnn(meshtrain(), {"MESHTRAIN_EMULATED_ARCHITECTURE=100"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out + ending.err, "attention by flash: 512 queries")) << ending.out << ending.err;
  EXPECT_FALSE(has(ending.out + ending.err, "cudnn")) << ending.out << ending.err;
}

TEST_F(Libraries, AreThoseOfTheFolderThatLibTorchCameFrom) {
  const std::filesystem::path copy = copy_of_everything();
  EXPECT_EQ(train_with_cudnn(copy / "meshtrain").status, 0);

  const std::filesystem::path builtins = copy / "nvidia/cu13/lib/libnvrtc-builtins.so.13.0";
  ASSERT_TRUE(std::filesystem::remove(builtins));
  EXPECT_TRUE(has(complaint(train_with_cudnn(copy / "meshtrain"), 2),
                  "device: cuda: libnvrtc-builtins.so.13 is missing next to " + (copy / "nvidia/cu13/lib").string()));

  ASSERT_TRUE(std::filesystem::remove(copy / "torch/lib/libtorch_cuda.so"));
  std::filesystem::remove(copy / "nvidia/cu13/lib/libnvrtc.so.13");
  std::filesystem::rename(copy / "nvidia/cu13/lib/libnvJitLink.so.13", builtins);  // any library will do
  std::filesystem::copy(builtins, copy / "torch/lib/libnvrtc-builtins.so.13.0");
  std::filesystem::copy(builtins, copy / "torch/lib/libnvrtc.so.13");
  const std::string message = complaint(train_with_cudnn(copy / "meshtrain"), 2);
  EXPECT_TRUE(has(message, "device: cuda: LibTorch's CUDA library cannot be opened: " + (copy / "torch/lib").string()))
      << message;
}

// LibTorch keeps the first answer: queried before its CUDA library is open, it never sees a GPU.
TEST_F(Libraries, AskingLibTorchTooEarlyIsReported) {
  const Ending ending = train_with_cudnn(meshtrain(), {"LD_PRELOAD=" + (build() / "libasks_early.so").string()});
  EXPECT_TRUE(has(complaint(ending, 2), "asked LibTorch about CUDA before the library was open")) << ending.err;
}

// Streams that share one of a GPU's hardware queues wait for each other; CUDA reads their number once.
TEST_F(Libraries, CudaIsAskedForAllHardwareQueuesBeforeItIsCalled) {
  const std::string preload = "LD_PRELOAD=" + (build() / "libqueues_seen.so").string();
  const Ending ending = train_with_cudnn(meshtrain(), {preload});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.err, "CUDA is asked for 32 hardware queues")) << ending.err;
  EXPECT_TRUE(
      has(train_with_cudnn(meshtrain(), {preload, "CUDA_DEVICE_MAX_CONNECTIONS=9"}).err, "for 9 hardware queues"));
}

class DeviceAuto : public TrainProgram {
 protected:
  void SetUp() override { setenv("MESHTRAIN_EMULATED_GPUS", "1", 1); }

  std::string log_of(int ranks, const Words& arguments) const {
    std::filesystem::remove_all(run_dir);
    const Ending ending = train(ranks, arguments);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out + ending.err;
  }
};

TEST_F(DeviceAuto, TakesAGpuForEachRankAndSaysWhyNot) {
  const Words two = {"--mesh", "dp=2", "--set", "train.steps=1"};
  EXPECT_TRUE(has(log_of(1, {"--set", "train.steps=1"}), "device cuda, emulated GPU"));
  const std::string shared = log_of(2, two);
  EXPECT_TRUE(has(
      shared, "device: auto chooses the CPU, because each rank needs a GPU of its own, but ranks 0 and 1 share one"))
      << shared;
  setenv("MESHTRAIN_EMULATED_GPUS", "0", 1);
  const std::string none = log_of(2, two);
  EXPECT_TRUE(has(none,
                  "device: auto chooses the CPU, because each rank needs a GPU of its own, but rank 0 has none: the "
                  "driver finds no GPU"))
      << none;
  EXPECT_FALSE(has(log_of(1, {"--set", "train.steps=1", "--set", "device=cpu"}), "device: auto"));
}

}  // namespace
}  // namespace meshtrain::testing
