#include "runtime/program/run/run_files.h"

#include <map>
#include <sstream>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/host_map.h"
#include "runtime/training/data/megatron_index.h"
#include "runtime/training/safetensors/folder.h"

namespace meshtrain {
namespace {

void add_source(const SourceOptions& source, const std::string& key, std::vector<RunFile>& files) {
  files.push_back({key + ".tokens", source.tokens});
  if (source.dtype == "megatron") files.push_back({key + ".tokens.idx", MegatronIndex::path_of(source.tokens)});
  if (!source.loss_mask.empty()) files.push_back({key + ".loss_mask", source.loss_mask});
}

std::vector<RunFile> files_of(const Recipe& recipe, bool reads_weights) {
  std::vector<RunFile> files = data_files(recipe.data);
  if (!recipe.evaluate.tokens.empty()) add_source(recipe.evaluate, "evaluate", files);
  if (!reads_weights) return files;
  for (const std::filesystem::path& path : SafetensorsFolder(recipe.model.hf).files()) {
    files.push_back({"model.hf, " + path.filename().string(), path});
  }
  return files;
}

/// The files of a host: its name, and path and fingerprint of each file by key.
struct HostFiles {
  std::string host;
  std::map<std::string, std::string> files;
};

constexpr char kSeparator = '\t';

std::string text_of(const std::vector<RunFile>& files) {
  std::string text = host_name() + "\n";
  for (const auto& [key, path] : files) {
    text += key + kSeparator + path.string() + " has " + describe(fingerprint(path)) + "\n";
  }
  return text;
}

HostFiles parse(const std::string& text) {
  HostFiles parsed;
  std::istringstream lines(text);
  std::getline(lines, parsed.host);
  for (std::string line; std::getline(lines, line);) {
    const size_t separator = line.find(kSeparator);
    if (separator != std::string::npos) parsed.files[line.substr(0, separator)] = line.substr(separator + 1);
  }
  return parsed;
}

void check_same(const HostFiles& first, const HostFiles& other) {
  const auto refuse = [&](const std::string& key, const std::string& one, const std::string& another) {
    throw InputError(key + ": hosts have different files: on " + first.host + " " + one + ", on " + other.host + " " +
                     another + ": give every host the same file");
  };
  for (const auto& [key, file] : first.files) {
    const auto found = other.files.find(key);
    if (found == other.files.end()) refuse(key, file, "no file");
    if (found->second != file) refuse(key, file, found->second);
  }
  for (const auto& [key, file] : other.files) {
    if (!first.files.contains(key)) refuse(key, "no file", file);
  }
}

}  // namespace

std::vector<RunFile> data_files(const DataOptions& data) {
  std::vector<RunFile> files;
  const std::vector<MixedSource> sources = data.sources();
  for (size_t i = 0; i < sources.size(); ++i) add_source(sources[i], data.source_key(i), files);
  return files;
}

std::string describe(const Fingerprint& print) {
  return std::to_string(print.bytes) + " bytes with checksum " + checksum_text(print.checksum);
}

void name_host(const Group& world, const std::function<void()>& action) try {
  action();
} catch (const InputError& error) {
  if (HostMap::of(world).host_of(world.rank()) == 0) throw;
  throw InputError("on host " + host_name() + ": " + error.what());
}

void check_same_files(const Recipe& recipe, bool reads_weights, const Group& world) {
  const HostMap hosts = HostMap::of(world);
  if (hosts.num_hosts() == 1) return;
  std::string text;
  agree(world, [&] {
    if (!hosts.is_first_of_host(world.rank())) return;
    name_host(world, [&] { text = text_of(files_of(recipe, reads_weights)); });
  });
  const std::vector<std::string> texts = gather_texts(world, text);
  agree(world, [&] {
    for (size_t rank = 1; rank < texts.size(); ++rank) {
      if (!texts[rank].empty()) check_same(parse(texts.front()), parse(texts[rank]));
    }
  });
}

}  // namespace meshtrain
