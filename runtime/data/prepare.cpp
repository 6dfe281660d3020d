#include "runtime/data/prepare.h"

#include <algorithm>
#include <cstddef>

#include "mesh/error.h"
#include "runtime/data/input_files.h"
#include "runtime/data/mapped_file.h"
#include "runtime/data/output_file.h"
#include "runtime/data/token_file.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokensAtOnce = int64_t{1} << 20;

void append_widened(const MappedFile& file, int64_t width, OutputFile& output) {
  if (width == 1) return output.append(file.data(), static_cast<size_t>(file.size()));
  std::vector<std::byte> block;
  for (int64_t first = 0; first < file.size(); first += kTokensAtOnce) {
    const int64_t count = std::min(kTokensAtOnce, file.size() - first);
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
  const std::vector<fs::path> files = input_files(inputs, output);
  std::error_code ignored;  // OutputFile says why
  if (output.has_parent_path()) fs::create_directories(output.parent_path(), ignored);
  OutputFile tokens(output);
  int64_t written = 0;
  for (const fs::path& file : files) {
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
