#include "tests/null_gpu/fat_binary.h"

#include <elf.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace meshtrain::null_gpu {
namespace {

constexpr uint32_t kArchitecture = 90;
constexpr uint16_t kElf = 2;        // the kind of entries with code; others are PTX
constexpr uint64_t kZstd = 0x8000;  // flag of an entry: compressed
constexpr uint8_t kWithSize = 4;    // an attribute whose value is longer than 2 bytes
constexpr uint8_t kMaxThreads = 0x05, kRegisters = 0x2f;

/// Returns the field at an offset in the header of a fat binary, of one of its entries, or of an ELF file.
template <class T>
T field(const char* head, size_t offset) {
  T value;
  std::memcpy(&value, head + offset, sizeof value);
  return value;
}

/// Returns the ELF file for kArchitecture; empty when there is none, or its compression is unknown.
std::string code_of(const char* data) {
  if (field<uint32_t>(data, 0) != 0xba55ed50) return {};
  const char* entry = data + field<uint16_t>(data, 6);
  const char* const end = entry + field<uint64_t>(data, 8);
  while (entry < end) {
    const char* const content = entry + field<uint32_t>(entry, 4);
    const auto size = field<uint64_t>(entry, 8);
    if (field<uint16_t>(entry, 0) == kElf && field<uint32_t>(entry, 28) == kArchitecture) {
      const auto flags = field<uint64_t>(entry, 40);
      if (std::string_view(content, 4) == ELFMAG) return {content, size};
      if ((flags & kZstd) == 0) return {};
      std::string code(field<uint64_t>(entry, 56), '\0');
      const size_t written = ZSTD_decompress(code.data(), code.size(), content, field<uint32_t>(entry, 16));
      return written == code.size() ? code : std::string();
    }
    entry = content + size;
  }
  return {};
}

/// The sections of an ELF file.
class Elf {
 public:
  explicit Elf(const std::string& file) : file_(file) {
    const auto head = field<Elf64_Ehdr>(file.data(), 0);
    for (int i = 0; i < head.e_shnum; ++i) {
      sections_.push_back(field<Elf64_Shdr>(file.data(), head.e_shoff + static_cast<size_t>(i) * sizeof(Elf64_Shdr)));
    }
    names_ = head.e_shstrndx;
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string_view name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }
  std::string_view content(const Elf64_Shdr& section) const {
    return section.sh_type == SHT_NOBITS ? std::string_view()
                                         : std::string_view(file_).substr(section.sh_offset, section.sh_size);
  }
  /// Returns the name of symbol `index`.
  std::string_view symbol(uint32_t index) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB) continue;
      const auto found = field<Elf64_Sym>(file_.data(), section.sh_offset + index * sizeof(Elf64_Sym));
      return text(section.sh_link, found.st_name);
    }
    return {};
  }

 private:
  std::string_view text(size_t section, size_t offset) const {
    return file_.data() + sections_[section].sh_offset + offset;
  }

  const std::string& file_;
  std::vector<Elf64_Shdr> sections_;
  size_t names_ = 0;
};

/// Calls with(attribute, value) for each attribute of a section .nv.info.
template <class With>
void for_attributes(std::string_view content, With with) {
  for (size_t at = 0; at + 4 <= content.size();) {
    const auto format = field<uint8_t>(content.data(), at), attribute = field<uint8_t>(content.data(), at + 1);
    const size_t size = format == kWithSize ? field<uint16_t>(content.data(), at + 2) : 0;
    with(attribute, content.substr(at + 4, size));
    at += 4 + size;
  }
}

std::map<std::string, KernelResources> read(const std::string& code) {
  std::map<std::string, KernelResources> kernels;
  if (code.empty()) return kernels;
  const Elf elf(code);
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string_view name = elf.name(section);
    constexpr std::string_view kInfo = ".nv.info.", kShared = ".nv.shared.";
    if (name == ".nv.info") {
      for_attributes(elf.content(section), [&](uint8_t attribute, std::string_view value) {
        if (attribute != kRegisters || value.size() != 8) return;
        kernels[std::string(elf.symbol(field<uint32_t>(value.data(), 0)))].registers = field<int>(value.data(), 4);
      });
    } else if (name.starts_with(kInfo)) {
      KernelResources& kernel = kernels[std::string(name.substr(kInfo.size()))];
      for_attributes(elf.content(section), [&](uint8_t attribute, std::string_view value) {
        if (attribute != kMaxThreads || value.size() != 12) return;
        kernel.max_threads = field<int>(value.data(), 0) * field<int>(value.data(), 4) * field<int>(value.data(), 8);
      });
    } else if (name.starts_with(kShared)) {
      kernels[std::string(name.substr(kShared.size()))].shared_bytes = static_cast<int>(section.sh_size);
    }
  }
  return kernels;
}

}  // namespace

std::optional<KernelResources> FatBinary::resources(const std::string& kernel) {
  if (!kernels_) kernels_ = read(code_of(data_));
  const auto found = kernels_->find(kernel);
  return found != kernels_->end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace meshtrain::null_gpu
