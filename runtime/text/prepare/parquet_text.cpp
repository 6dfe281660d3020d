#include "runtime/text/prepare/parquet_text.h"

#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <system_error>

#include "mesh/base/error.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/lower_case.h"
#include "runtime/text/prepare/parquet/plugin.h"

namespace meshtrain {
namespace {

constexpr const char* kParquetLibrary = "libmeshtrain_parquet.so";

/// The plug-in, opened once for good; or the reason why there is none.
struct OpenedParquet {
  const ParquetPlugin* plugin = nullptr;
  std::string problem;
};

OpenedParquet open_parquet() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::filesystem::path& at : {folder, folder.parent_path()}) {  // tests are in a folder of the program's
    if (!std::filesystem::exists(at / kParquetLibrary, error)) continue;
    void* const library = ::dlopen((at / kParquetLibrary).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return {nullptr, std::string(kParquetLibrary) + " cannot be opened: " + ::dlerror()};
    const auto plugin = reinterpret_cast<const ParquetPlugin* (*)()>(::dlsym(library, "meshtrain_parquet_plugin"));
    if (plugin != nullptr) return {plugin(), ""};
  }
  return {nullptr, "meshtrain was built without Arrow"};
}

void read_parquet(const std::filesystem::path& file, const std::string& column, const ParquetVisit& visit) {
  const FileReader reader(file);
  const FileBytes beginning = reader.read(0, std::min(reader.size(), kContentBytes));
  if (content_of(beginning.text()) != Content::Parquet) {
    const std::string content = describe_text_for_binary(beginning.text());
    throw InputError("cannot read " + file.string() + ": it is not a Parquet file" +
                     (content.empty() ? ": give it another name" : content));
  }
  static const OpenedParquet opened = open_parquet();
  if (opened.plugin == nullptr) {
    throw InputError("cannot read " + file.string() + ": " + opened.problem +
                     ": run tools/setup --parquet and build again, or convert it to JSON lines");
  }
  bool is_of_visit = false;
  ParquetVisit guarded;
  if (visit) {
    guarded = [&](std::string_view text, int64_t row, int64_t num_rows) {
      try {
        visit(text, row, num_rows);
      } catch (...) {
        is_of_visit = true;
        throw;
      }
    };
  }
  std::string problem;
  try {
    problem = opened.plugin->read(file.string(), column, guarded);
  } catch (const std::exception& error) {
    if (is_of_visit) throw;
    const std::string reason = error.what();
    throw InputError("cannot read " + file.string() +
                     ": it is not a Parquet file, or damaged: " + reason.substr(0, reason.find('\n')));
  }
  if (!problem.empty()) throw InputError(file.string() + " " + problem);
}

}  // namespace

bool is_parquet(const std::filesystem::path& file) {
  return lower_case(file.extension()) == ".parquet";
}

void check_parquet(const std::filesystem::path& file, const std::string& column) {
  read_parquet(file, column, {});
}

void for_each_parquet_text(const std::filesystem::path& file, const std::string& column,
                           const std::function<void(std::string_view text, int64_t row, double part)>& visit) {
  read_parquet(file, column, [&](std::string_view text, int64_t row, int64_t num_rows) {
    visit(text, row, static_cast<double>(row + 1) / static_cast<double>(num_rows));
  });
}

}  // namespace meshtrain
