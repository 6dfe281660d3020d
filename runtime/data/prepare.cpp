#include "runtime/data/prepare.h"

#include <algorithm>
#include <cstddef>
#include <system_error>

#include "mesh/error.h"
#include "runtime/data/mapped_file.h"
#include "runtime/data/output_file.h"
#include "runtime/data/token_file.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockTokens = int64_t{1} << 20;

void collect(const fs::path& folder, std::vector<fs::path>& files) {
  try {
    for (fs::recursive_directory_iterator entry(folder), end; entry != end; ++entry) {
      if (entry->is_directory() && entry->path().filename().string().starts_with('.')) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        files.push_back(entry->path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError("cannot read " + folder.string() + ": " + error.code().message());
  }
}

std::vector<fs::path> files_of(const fs::path& input) {
  std::error_code error;
  const fs::file_status status = fs::status(input, error);
  if (!fs::exists(status)) throw InputError("cannot read " + input.string() + ": there is no such file or folder");
  std::vector<fs::path> files;
  if (!fs::is_directory(status)) return {input};
  collect(input, files);
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.generic_string() < b.generic_string(); });
  return files;
}

void append_widened(const MappedFile& file, int64_t width, OutputFile& output) {
  if (width == 1) return output.append(file.data(), static_cast<size_t>(file.size()));
  std::vector<std::byte> block;
  for (int64_t first = 0; first < file.size(); first += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, file.size() - first);
    block.assign(static_cast<size_t>(count * width), std::byte{0});
    for (int64_t i = 0; i < count; ++i) block[static_cast<size_t>(i * width)] = file.data()[first + i];
    output.append(block.data(), block.size());
  }
}

}  // namespace

int64_t prepare_bytes(const std::vector<fs::path>& inputs, const fs::path& output, const std::string& dtype,
                      std::optional<int64_t> separator) {
  const int64_t width = token_width(dtype);
  if (separator) check_token("--separator", *separator, dtype);
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    const std::vector<fs::path> found = files_of(input);
    files.insert(files.end(), found.begin(), found.end());
  }
  fs::path partial = output;
  partial += ".partial";
  OutputFile tokens(output);
  int64_t written = 0;
  for (const fs::path& file : files) {
    std::error_code ignored;
    if (fs::equivalent(file, output, ignored) || fs::equivalent(file, partial, ignored)) continue;
    const MappedFile bytes(file);
    if (bytes.size() == 0) continue;
    append_widened(bytes, width, tokens);
    written += bytes.size();
    if (!separator) continue;
    tokens.append(&*separator, static_cast<size_t>(width));  // little-endian: its low bytes
    ++written;
  }
  if (written == 0) throw InputError("nothing to write to " + output.string() + ": the inputs hold no bytes");
  tokens.finish();
  return written;
}

}  // namespace meshtrain
