#include "runtime/text/prepare/prepare.h"

#include <string_view>

#include "mesh/base/error.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/output_file.h"
#include "mesh/base/progress.h"
#include "runtime/text/prepare/sidecar_tokenizer.h"
#include "runtime/training/data/token_file.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

void append_widened(const FileReader& file, int64_t width, OutputFile& output, Progress& progress) {
  std::string wide;
  file.for_each_block(0, file.size(), [&](std::string_view block) {
    progress.advance(static_cast<int64_t>(block.size()));
    if (width == 1) return output.append(block.data(), block.size());
    wide.assign(block.size() * static_cast<size_t>(width), '\0');
    for (size_t i = 0; i < block.size(); ++i) wide[i * static_cast<size_t>(width)] = block[i];
    output.append(wide.data(), wide.size());
  });
}

}  // namespace

int64_t prepare_bytes(const std::vector<fs::path>& inputs, const fs::path& output, const std::string& dtype,
                      std::optional<int64_t> separator, const FileFilter& filter, const std::string& command) {
  const int64_t width = token_width(dtype);
  if (separator) check_token("--separator", *separator, dtype);
  check_sidecar_path(output);
  const std::vector<fs::path> files = input_files(inputs, output, filter);
  std::error_code ignored;  // OutputFile reports why
  if (output.has_parent_path()) fs::create_directories(output.parent_path(), ignored);
  OutputFile tokens(output);
  Progress progress("bytes for " + output.string(), 0, "bytes");
  int64_t written = 0, text_bytes = 0;
  for (const fs::path& file : files) {
    const FileReader bytes(file);
    if (bytes.size() == 0) continue;
    append_widened(bytes, width, tokens, progress);
    written += bytes.size();
    text_bytes += bytes.size();
    if (!separator) continue;
    tokens.append(&*separator, static_cast<size_t>(width));  // little-endian: its low bytes
    ++written;
  }
  if (written == 0) throw InputError("nothing to write to " + output.string() + ": the inputs hold no bytes");
  TokenSidecar sidecar = sidecar_of_origin(*load_tokenizer("bytes"), "bytes", separator, command);
  sidecar.dtype = dtype;
  sidecar.tokens = written;
  sidecar.text_bytes = text_bytes;
  tokens.sync();
  SidecarReplacement replacement(output, sidecar);
  replacement.begin();
  tokens.finish();
  replacement.finish();
  return written;
}

}  // namespace meshtrain
