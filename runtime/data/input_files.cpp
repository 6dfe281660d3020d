#include "runtime/data/input_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "mesh/error.h"
#include "runtime/yaml/value.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

fs::path with_ending(fs::path path, const char* ending) {
  path += ending;
  return path;
}

bool same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

/// Throws InputError for a link to a file that does not exist.
void refuse_dangling(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_symlink(path, ignored) || fs::exists(path, ignored)) return;
  throw InputError("cannot read " + path.string() + ": it is a link to " + fs::read_symlink(path, ignored).string() +
                   ", which does not exist: repair it, or remove it");
}

void collect(const fs::path& folder, const fs::path& parts, std::vector<fs::path>& files) {
  try {
    for (fs::recursive_directory_iterator entry(folder), end; entry != end; ++entry) {
      refuse_dangling(entry->path());
      if (entry->is_directory() && (entry->path().filename().string().starts_with('.') || same(entry->path(), parts))) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        files.push_back(entry->path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError("cannot read " + folder.string() + ": " + error.code().message());
  }
}

std::vector<fs::path> files_of(const fs::path& input, const fs::path& parts) {
  refuse_dangling(input);
  std::error_code error;
  const fs::file_status status = fs::status(input, error);
  if (!fs::exists(status)) throw InputError("cannot read " + input.string() + ": there is no such file or folder");
  std::vector<fs::path> files;
  if (!fs::is_directory(status)) return {input};
  collect(input, parts, files);
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.generic_string() < b.generic_string(); });
  return files;
}

}  // namespace

fs::path parts_folder(const fs::path& output) {
  return with_ending(output, ".parts");
}

std::vector<fs::path> input_files(const std::vector<fs::path>& inputs, const fs::path& output) {
  std::vector<fs::path> files;
  const fs::path partial = with_ending(output, ".partial");
  for (const fs::path& input : inputs) {
    if (same(input, output)) {
      throw InputError("--out " + output.string() + " is the same file as the input " + input.string() +
                       ": name another one to write");
    }
    if (same(input, parts_folder(output))) {
      throw InputError("the input " + input.string() +
                       " is the folder that data prepare needs for the parts of --out " + output.string() +
                       ": name another one to write");
    }
    for (fs::path& file : files_of(input, parts_folder(output))) {
      if (!same(file, output) && !same(file, partial)) files.push_back(std::move(file));
    }
  }
  return files;
}

void refuse_repeated(const std::vector<fs::path>& files) {
  std::map<std::pair<dev_t, ino_t>, const fs::path*> known;
  for (const fs::path& file : files) {
    struct stat found {};
    if (::stat(file.c_str(), &found) != 0) continue;  // opening it will report why
    const auto [first, is_new] = known.try_emplace({found.st_dev, found.st_ino}, &file);
    if (is_new) continue;
    throw InputError("the inputs " + first->second->string() + " and " + file.string() +
                     " are the same file: leave one out (to take a text more often, give its token file a weight in "
                     "data.mixture)");
  }
}

bool is_json_lines(const fs::path& file) {
  const std::string ending = lower_case(file.extension());
  return ending == ".jsonl" || ending == ".ndjson";
}

}  // namespace meshtrain
