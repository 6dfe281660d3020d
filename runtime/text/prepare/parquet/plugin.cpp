#include "runtime/text/prepare/parquet/plugin.h"

#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <array>
#include <memory>

namespace meshtrain {
namespace {

constexpr int64_t kBatch = 256;  // values

/// Returns the names of the columns, or of the first of many.
std::string columns_of(const parquet::SchemaDescriptor& schema) {
  constexpr int kMost = 20;
  std::string names;
  for (int i = 0; i < schema.num_columns() && i < kMost; ++i) {
    names += (i == 0 ? "" : ", ") + schema.Column(i)->path()->ToDotString();
  }
  return names + (schema.num_columns() > kMost ? ", ..." : "");
}

void read_group(parquet::ByteArrayReader& reader, int max_definition, int64_t first_row, int64_t num_rows,
                const ParquetVisit& visit) {
  std::array<int16_t, kBatch> definitions{};
  std::array<parquet::ByteArray, kBatch> values{};
  while (reader.HasNext()) {
    int64_t num_values = 0;
    const int64_t num_levels = reader.ReadBatch(kBatch, definitions.data(), nullptr, values.data(), &num_values);
    if (num_levels == 0 && num_values == 0) throw parquet::ParquetException("a page without its values");
    const bool has_nulls = max_definition > 0;
    int64_t value = 0;
    for (int64_t i = 0; i < (has_nulls ? num_levels : num_values); ++i, ++first_row) {
      if (has_nulls && definitions[static_cast<size_t>(i)] < max_definition) continue;
      const parquet::ByteArray& text = values[static_cast<size_t>(value++)];
      visit({reinterpret_cast<const char*>(text.ptr), text.len}, first_row, num_rows);
    }
  }
}

std::string read(const std::string& file, const std::string& column, const ParquetVisit& visit) {
  parquet::ReaderProperties properties;
  properties.enable_buffered_stream();
  const std::unique_ptr<parquet::ParquetFileReader> reader =
      parquet::ParquetFileReader::OpenFile(file, /*memory_map=*/false, properties);
  const parquet::FileMetaData& metadata = *reader->metadata();
  const int index = metadata.schema()->ColumnIndex(column);
  if (index < 0) {
    return "has no column \"" + column + "\"; its columns are " + columns_of(*metadata.schema()) +
           ": name one with --field";
  }
  for (int i = index + 1; i < metadata.num_columns(); ++i) {
    if (metadata.schema()->Column(i)->path()->ToDotString() != column) continue;
    return "has several columns \"" + column + "\": rename one of them";
  }
  const parquet::ColumnDescriptor& found = *metadata.schema()->Column(index);
  const std::shared_ptr<const parquet::LogicalType>& type = found.logical_type();
  const bool is_text = found.physical_type() == parquet::Type::BYTE_ARRAY && found.max_repetition_level() == 0 &&
                       (type->is_none() || type->is_string() || type->is_JSON() || type->is_enum());
  if (!is_text) return "has no texts in its column \"" + column + "\": name another one with --field";
  if (!visit) return "";
  int64_t row = 0;
  for (int group = 0; group < metadata.num_row_groups(); ++group) {
    const std::shared_ptr<parquet::ColumnReader> values = reader->RowGroup(group)->Column(index);
    read_group(static_cast<parquet::ByteArrayReader&>(*values), found.max_definition_level(), row, metadata.num_rows(),
               visit);
    row += metadata.RowGroup(group)->num_rows();
  }
  return "";
}

}  // namespace

}  // namespace meshtrain

extern "C" __attribute__((visibility("default"))) const meshtrain::ParquetPlugin* meshtrain_parquet_plugin() {
  static const meshtrain::ParquetPlugin plugin{meshtrain::read};
  return &plugin;
}
