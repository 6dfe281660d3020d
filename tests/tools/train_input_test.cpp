#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "mesh/device/cuda/plugin.h"
#include "runtime/program/run/run_directory.h"
#include "tests/support/files.h"
#include "tests/tools/train_program.h"

// Errors before the first step: status 2 and one line from one rank.
namespace meshtrain::testing {
namespace {

class TrainInput : public TrainProgram {};

TEST_F(TrainInput, MisspeltAndDuplicateKeys) {
  EXPECT_TRUE(has(complaint(2, {"--set", "train.stpes=3"}), "train.stpes=3: unknown key; did you mean \"steps\"?"));
  std::ofstream(recipe, std::ios::app) << "device: cpu\ndevice: auto\n";
  const std::string twice = complaint(2, {});
  EXPECT_TRUE(has(twice, recipe.string() + ":") && has(twice, ": device: appears twice")) << twice;
}

TEST_F(TrainInput, AStepThatIsNoneOrTooLarge) {
  const std::string range = " is not a whole number from 0 to 9223372036854775807: see meshtrain train --help";
  for (const std::string step : {"ten", "-1", "9223372036854775808", "1.5"}) {
    EXPECT_EQ(complaint(1, {"--resume-step", step}), "meshtrain train: --resume-step: " + step + range);
  }
}

TEST_F(TrainInput, AConfigJsonThatIsDamaged) {
  std::filesystem::create_directory(path("hf"));
  write("hf/config.json", "{\n  \"model_type\": \"llama\",\n  \"hidden_size\": }\n");
  const std::string message = complaint(1, {"--set", "model={hf: " + path("hf").string() + ", init: random}"});
  EXPECT_TRUE(has(message, path("hf/config.json").string() +
                               " is not valid JSON: line 3, column 18: syntax error while parsing value"))
      << message;
  EXPECT_FALSE(has(message, "json.exception")) << message;
}

TEST_F(TrainInput, CudaWithoutADriver) {
  if (is_cuda_driver_there()) GTEST_SKIP() << "this machine has a driver";
  const bool built = std::filesystem::exists(build_folder() + "/libmeshtrain_cuda.so");
  const std::string expected =
      built ? "device: cuda: this machine has no NVIDIA driver (libcuda.so.1 is not found): install one for CUDA 13"
            : "device: cuda: libmeshtrain_cuda.so is not in " + build_folder() +
                  (has(content(build_folder() + "/build.ninja"), "libmeshtrain_cuda.so")
                       ? ": run tools/build release meshtrain_cuda"
                       : ": build where nvcc of CUDA 13 is found");
  for (const int ranks : {1, 2}) {
    const std::string message = complaint(ranks, {"--mesh", "dp=auto", "--set", "device=cuda"});
    EXPECT_TRUE(message.starts_with(expected) && message.ends_with(", or use device: cpu")) << message;
  }
  const std::string message = complaint(1, {"--set", "parallel.backend=nccl"});
  EXPECT_TRUE(message.starts_with(expected)) << message;
  EXPECT_FALSE(std::filesystem::exists(run_dir)) << "nothing is left behind";
}

TEST_F(TrainInput, ThreadsThatAreNoNumber) {
  const std::string message = complaint(2, {"--mesh", "dp=2"}, 2, "export OMP_NUM_THREADS=abc");
  EXPECT_EQ(
      message,
      "OMP_NUM_THREADS is \"abc\": set it to a number of threads, 1 or more (or several with commas, of which the "
      "first counts), or unset it");
  EXPECT_TRUE(has(train(1, {"--set", "train.steps=1"}, "export OMP_NUM_THREADS='3 , 1'").out,
                  "3 threads: set by OMP_NUM_THREADS"));
  EXPECT_FALSE(has(train(1, {"--set", "train.steps=1", "--run-dir", path("second")}, "export OMP_NUM_THREADS=").out,
                   "OMP_NUM_THREADS"));
}

TEST_F(TrainInput, AWorkingDirectoryThatIsGone) {
  for (const std::string arguments : {"--help", "data prepare --bytes a --out b", "train r.yaml"}) {
    const std::string gone = path("gone").string();
    const Ending ending = run_program({"/bin/sh", "-c",
                                       "mkdir " + gone + " && cd " + gone + " && rmdir " + gone + " && exec " +
                                           build_folder() + "/meshtrain " + arguments});
    EXPECT_EQ(only_complaint(ending), "the working directory no longer exists: change to another one (cd)");
  }
}

TEST_F(TrainInput, MeshThatDoesNotFitTheRanks) {
  const std::string message = complaint(3, {"--mesh", "dp=2"});
  EXPECT_TRUE(has(message, "dp=2 x cp=1 x tp=1 needs 2 ranks, but 3 were started")) << message;
}

// Each task may be on a host of its own, and all but one would end without a word.
TEST_F(TrainInput, TasksThatMpiDoesNotSeeAreRefusedOnEach) {
  struct Announced {
    std::string size, rank, task;
  };
  for (const auto& [size, rank, task] : {Announced{"PMI_SIZE", "PMI_RANK", "0"},
                                         {"PMI_SIZE", "PMI_RANK", "3"},
                                         {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "3"},
                                         {"FLUX_JOB_SIZE", "FLUX_TASK_RANK", "3"},
                                         {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "0"},
                                         {"PALS_LOCAL_SIZE", "PALS_RANKID", "3"}}) {
    const std::string message = complaint(run_program(command(1, {}), {size + "=4", rank + "=" + task}), 2);
    EXPECT_EQ(message.rfind("task " + task + " on host ", 0), 0u) << message;
    EXPECT_TRUE(has(message, ": the launcher announces 4 tasks (" + size + "), but MPI sees only this one")) << message;
  }
  EXPECT_FALSE(std::filesystem::exists(run_dir)) << "nothing is left behind";
}

// srun without PMIx: Open MPI sees a step, cannot join it, and would end the process in MPI_Init with words of its own.
TEST_F(TrainInput, TasksWhoseMpiCannotStartAreToldWhy) {
  for (const std::string task : {"0", "1"}) {
    const Ending ending = run_program(
        command(1, {}), {"SLURM_JOBID=7", "SLURM_JOB_ID=7", "SLURM_STEPID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=2",
                         "SLURM_STEP_NUM_TASKS=2", "SLURM_NODELIST=here", "SLURM_PROCID=" + task});
    const std::string message = complaint(ending, 2);
    EXPECT_EQ(message.rfind("task " + task + " on host ", 0), 0u) << message;
    EXPECT_TRUE(has(message, ": the launcher announces 2 tasks (SLURM_STEP_NUM_TASKS), but MPI sees only this one"))
        << message;
    EXPECT_TRUE(has(message, "srun --mpi=pmix")) << message;
  }
}

// A shell of salloc, a script of sbatch that was submitted from inside a step, one task of a step: each is one process.
TEST_F(TrainInput, OneProcessOfAnAllocationTrains) {
  const Words allocation = {"SLURM_JOB_ID=7", "SLURM_JOBID=7", "SLURM_NTASKS=4", "SLURM_NODELIST=here",
                            "SLURM_NNODES=1"};
  for (const Words& more : {Words{},
                            {"SLURM_PROCID=0", "SLURM_STEP_ID=-5", "SLURM_STEPID=-5", "SLURM_STEP_NUM_TASKS=4"},
                            {"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_STEPID=0", "SLURM_STEP_NUM_TASKS=1"}}) {
    Words environment = allocation;
    environment.insert(environment.end(), more.begin(), more.end());
    const Ending ending = run_program(command(1, {}), environment);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.err, "");
    std::filesystem::remove_all(run_dir);
  }
}

// The recipe is for one rank.
TEST_F(TrainInput, SeveralRanksWithoutAMeshAreDataParallel) {
  const std::string note = "mesh dp=2: the recipe is for one rank, and 2 were started; --mesh chooses another mesh\n";
  const Ending ending = train(2, {});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.out.rfind(note, 0), 0u) << ending.out;
  EXPECT_TRUE(has(content(run_dir / "recipe.yaml"), "dp: 2")) << content(run_dir / "recipe.yaml");
  EXPECT_TRUE(has(content(run_dir / "console.log"), note)) << content(run_dir / "console.log");

  const Ending resumed = train(3, {"--resume", "--set", "train.global_batch=6"});
  EXPECT_TRUE(resumed.status == 0 && has(resumed.out, "mesh dp=3: the recipe is for one rank")) << resumed.err;
  EXPECT_FALSE(has(train(1, {"--resume"}).out, "the recipe is for one rank"));

  // What is asked for is kept.
  for (const Words& asked : {Words{"--mesh", "dp=1"}, {"--set", "parallel.mesh.dp=1"}}) {
    const std::string message = complaint(2, asked);
    EXPECT_TRUE(has(message,
                    "needs 1 rank, but 2 were started: change --mesh or mpirun -n; --mesh dp=2,cp=1,tp=1 "
                    "would fit"))
        << message;
  }
  // What does not divide is refused as if it had been asked for.
  EXPECT_TRUE(has(complaint(3, {}), "train.global_batch: 4 is not a multiple of dp x micro_batch = 3 x 1 = 3"));
}

TEST_F(TrainInput, OtherCommandsTakeTheSameMesh) {
  const std::string note = "mesh dp=2: the recipe is for one rank, and 2 were started; --mesh chooses another mesh\n";
  const Ending mesh = run_meshtrain({"mesh", recipe, "--ranks", "2"});
  EXPECT_EQ(mesh.out.rfind(note + "mesh dp=2,cp=1,tp=1: 2 ranks on 1 host", 0), 0u) << mesh.out << mesh.err;
  const Ending verify = run_meshtrain_on_ranks(2, {"verify", recipe});
  EXPECT_EQ(verify.status, 0) << verify.err;
  EXPECT_EQ(verify.out.rfind(recipe.string() + ": " + note, 0), 0u) << verify.out;
  const Ending check = run_meshtrain_on_ranks(2, {"train", recipe, "--check"});
  EXPECT_EQ(check.out.rfind(note, 0), 0u) << check.out << check.err;
  EXPECT_TRUE(has(check.out, "fits mesh dp=2,cp=1,tp=1;")) << check.out;
  EXPECT_TRUE(has(only_complaint(run_meshtrain_on_ranks(1, {"train", recipe, "--check", "--mesh", "tp=3"})), "tp=3"));
}

TEST_F(TrainInput, CountsThatDoNotDivideOverTp) {
  EXPECT_TRUE(has(complaint(3, {"--mesh", "tp=3"}), "model.num_attention_heads: 4 does not divide over tp=3"));
  for (const Words& count : {Words{"num_key_value_heads", "1"}, {"intermediate_size", "49"}}) {
    const std::string set = "model." + count[0] + "=" + count[1];
    const std::string message = complaint(2, {"--mesh", "tp=2", "--set", set});
    EXPECT_TRUE(has(message, "--set " + set + ": " + count[1] + " does not divide over tp=2")) << message;
  }
}

TEST_F(TrainInput, TokenFile) {
  const std::string tokens = path("tokens.bin");
  std::string message = complaint(2, {"--mesh", "dp=2", "--set", "model.vocab_size=40"});
  EXPECT_TRUE(has(message, tokens + ": token 40 has id 40, beyond the vocabulary of 40")) << message;
  std::filesystem::resize_file(tokens, 100 * 17 - 1);
  message = complaint(2, {"--mesh", "dp=2"});
  EXPECT_TRUE(has(message, tokens + ": 1699 tokens are not a whole number of records of 17")) << message;
  std::filesystem::remove(tokens);
  message = complaint(2, {"--mesh", "dp=2"});
  EXPECT_EQ(message, "data.tokens: cannot read " + tokens + ": No such file or directory");
  message = complaint(2, {"--mesh", "dp=2", "--set", "data.source=make tokens"});
  EXPECT_EQ(message, "data.tokens: " + tokens + " does not exist; according to the recipe it comes from: make tokens");
  write("other.yaml", "extends: tiny.yaml\ndata: {source: make tokens, tokens: a.bin}\n");
  recipe = path("other.yaml");
  message = complaint(1, {"--set", "data.tokens=b.bin"});
  EXPECT_FALSE(has(message, "make tokens")) << "other tokens do not come from there: " << message;
}

// Each rank has its own working directory, as on a host whose disk lacks a file of the others.
TEST_F(TrainInput, TokenFileThatOneRankLacks) {
  std::filesystem::create_directories(path("0"));
  std::filesystem::create_directories(path("1"));
  std::filesystem::rename(path("tokens.bin"), path("0/tokens.bin"));
  const std::string message = complaint(2, {"--mesh", "dp=2", "--set", "data.tokens=/proc/self/cwd/tokens.bin"}, 2,
                                        "cd " + path("$OMPI_COMM_WORLD_RANK").string());
  EXPECT_EQ(message, "data.tokens: cannot read /proc/self/cwd/tokens.bin: No such file or directory");
  EXPECT_TRUE(metrics().empty());
}

TEST_F(TrainInput, HuggingFaceFolder) {
  const std::filesystem::path good = path("good"), hf = path("hf"), weights = hf / "model.safetensors";
  ASSERT_EQ(train(1, {"--set", "train.steps=1", "--set", "train.export=" + good.string()}).status, 0);
  run_dir = path("second");
  const auto refusal = [&](const std::function<void()>& damage) {
    std::filesystem::remove_all(hf);
    std::filesystem::copy(good, hf);
    damage();
    return complaint(2, {"--mesh", "tp=2", "--set", "model.hf=" + hf.string()});
  };
  const auto flip_bit_of_byte = [&](int at) {
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char flipped = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(flipped);
  };
  std::string message = refusal([&] { std::filesystem::remove(weights); });
  EXPECT_TRUE(has(message, "there is no model.safetensors, nor its index, in " + hf.string())) << message;
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2471645608\n";
  for (const auto& file : {weights, hf / "config.json"}) {
    message = refusal([&] { write_file(file, pointer); });
    EXPECT_TRUE(has(message, "cannot read " + file.string() + ": it is a pointer of Git LFS")) << message;
    message = refusal([&] { write_file(file, "<html>\n<body>Sign in</body></html>\n"); });
    EXPECT_TRUE(has(message, file.string()) && has(message, "it is a page of HTML, not the file itself")) << message;
    message = refusal([&] {
      std::filesystem::remove(file);
      std::filesystem::create_symlink("../../blobs/4d7a", file);
    });
    EXPECT_TRUE(has(message, file.string() + ": it is a link to ../../blobs/4d7a, which does not exist")) << message;
  }
  message = refusal([&] { std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 64); });
  EXPECT_TRUE(has(message, weights.string() + ": tensor ") && has(message, "the file was cut short")) << message;
  message = refusal([&] { flip_bit_of_byte(8); });  // the { of the header
  EXPECT_TRUE(has(message, weights.string() + ": damaged, its header is not valid JSON")) << message;
  message = refusal([&] { flip_bit_of_byte(6); });  // a byte of the header's length
  EXPECT_TRUE(has(message, weights.string() + ": cut short, or not a safetensors file")) << message;
  message = refusal([&] {
    const nlohmann::json config = nlohmann::json::parse(std::ifstream(good / "config.json"));
    nlohmann::json quantised = config;
    quantised["quantization_config"] = {{"bits", 4}};
    std::ofstream(hf / "config.json") << quantised;
  });
  EXPECT_TRUE(has(message, "config.json: quantization_config is ")) << message;
  EXPECT_FALSE(std::filesystem::exists(run_dir));
}

// Found at the start, not after the last step.
TEST_F(TrainInput, AnExportOntoTheRun) {
  const std::string run = run_dir.string();
  const auto refusal = [&](const std::filesystem::path& folder) {
    const Words words = {"--set", "train.export=" + folder.string()};
    const std::string message = complaint(1, words);
    EXPECT_FALSE(std::filesystem::exists(run_dir));
    Words check = command(1, words);
    check.push_back("--check");
    EXPECT_EQ(only_complaint(run_program(check)), message);
    return message;
  };
  const std::string end = " is there: name a folder elsewhere";
  EXPECT_EQ(refusal(run_dir), "train.export: " + run + " cannot be exported to: the run directory " + run + end);
  for (const char* name : {"checkpoints", "metrics.jsonl", "recipe.yaml", "console.log"}) {
    EXPECT_EQ(refusal(run_dir / name),
              "train.export: " + run + "/" + name + " cannot be exported to: the run's " + run + "/" + name + end);
  }
  EXPECT_TRUE(has(refusal(run_dir / "checkpoints/mine"), "the run's " + run + "/checkpoints is there"));
  run_dir = path("new/run");
  EXPECT_TRUE(has(refusal(path("new")), "the run directory " + run_dir.string() + " is there"));
  run_dir = path("mine.partial");
  EXPECT_TRUE(has(refusal(path("mine")), "the run directory " + run_dir.string() + " is there"))
      << "where it is written";
  std::filesystem::create_directories(path("hf"));
  write("hf/tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2471645608\n");
  run_dir = path("run");
  const std::string message = complaint(
      1, {"--set", "train.export=" + path("mine").string(), "--set", "data.tokenizer=" + path("hf").string()});
  EXPECT_TRUE(has(message, "hf/tokenizer.json: it is a pointer of Git LFS")) << message;
  const Ending inside = train(1, {"--set", "train.export=" + (run_dir / "final").string()});
  EXPECT_EQ(inside.status, 0) << inside.err;
}

// Every entry that a run with all its files makes is one of RunDirectory::is_own().
TEST_F(TrainInput, TheNamesInARunDirectoryAreKnown) {
  const Ending ending =
      train(2, {"--mesh", "dp=2", "--set", "checkpoint.every=2", "--set",
                "train={tensorboard: true, parameter_metrics: {every: 2}}", "--set", "train.profile.from=2"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir)) {
    EXPECT_TRUE(RunDirectory::is_own(entry.path().filename())) << entry.path();
  }
}

/// Returns every file below `folder` with its content and time.
std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::ostringstream text;
    text << entry.last_write_time().time_since_epoch().count() << std::ifstream(entry.path()).rdbuf();
    files[entry.path()] = text.str();
  }
  return files;
}

TEST_F(TrainInput, RunDirectory) {
  std::filesystem::create_directory(run_dir);
  std::ofstream(run_dir / "metrics.jsonl") << "{\"step\":1}\n";
  const auto before = contents(run_dir);
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2"}), "the run directory " + run_dir.string() + " holds a run;"));
  EXPECT_EQ(contents(run_dir), before);

  run_dir = path("used");
  std::filesystem::create_directory(run_dir);
  const int lock = open((run_dir / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  EXPECT_TRUE(has(complaint(2, {"--mesh", "dp=2"}), "the run directory " + run_dir.string() + " is in use"));
  close(lock);

  run_dir = path("tokens.bin/run");
  EXPECT_EQ(complaint(2, {"--mesh", "dp=2"}), "the run directory " + run_dir.string() + " cannot be made: " +
                                                  path("tokens.bin").string() + " is not a folder");
}

// In a copy of the recipes, without the files that tools/fetch_3d_data.py downloads.
TEST_F(TrainInput, DocumentedRecipesSayWhatFetchesTheirFiles) {
  const std::filesystem::path recipes = path("recipes");
  std::filesystem::copy(source_folder() + "/recipes", recipes, std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path("recipes"))) {
    if (entry.path().extension() == ".safetensors") std::filesystem::remove(entry.path());
  }
  const auto expect = [&](int ranks, const std::string& missing, const std::string& script) {
    const std::string message = complaint(ranks, {});
    EXPECT_TRUE(has(message, missing) && has(message, "python3 tools/fetch_3d_data.py " + script)) << message;
    EXPECT_FALSE(std::filesystem::exists(run_dir));
  };
  for (const std::string name : {"a_dp2_tp2", "b_dp2_cp2", "c_tp2_cp2", "d_dp2_tp2_cp2", "e_cp4", "f_dp4", "g_tp4"}) {
    recipe = recipes / "hf_3d" / (name + ".yaml");
    expect(1, "there is no model.safetensors", "--model SmolLM2-1.7B");
  }
  recipe = recipes / "hf_3d/f_dp4.yaml";
  expect(4, "there is no model.safetensors", "--model SmolLM2-1.7B");
  write("recipes/models/SmolLM2-1.7B/model.safetensors", "");
  expect(4, path("data/tinystories_1025.bin"), "--only tokens");
  recipe = recipes / "hf_3d/h_single.yaml";
  expect(1, path("data/tinystories_1025.bin"), "--only tokens");
}

}  // namespace
}  // namespace meshtrain::testing
