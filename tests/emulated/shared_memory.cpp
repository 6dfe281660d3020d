#include "tests/emulated/shared_memory.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::emulated {
namespace {

constexpr std::string_view kTag = "B15emulated_shared";  // include/cuda_runtime.h, as in mangled names

/// The file that this code was loaded from, and its address.
struct Loaded {
  std::string file;
  char* address = nullptr;
};

bool holds(const dl_phdr_info& object, uintptr_t address) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object.dlpi_phdr[i];
    const uintptr_t begin = object.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && address >= begin && address < begin + part.p_memsz) return true;
  }
  return false;
}

Loaded find_loaded() {
  Loaded loaded;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* found) {
        if (!holds(*object, reinterpret_cast<uintptr_t>(&forget_shared_memory))) return 0;
        const std::string name = object->dlpi_name;  // empty for the program itself
        *static_cast<Loaded*>(found) = {name.empty() ? "/proc/self/exe" : name,
                                        reinterpret_cast<char*>(object->dlpi_addr)};
        return 1;
      },
      &loaded);
  return loaded;
}

std::vector<std::span<char>> shared_variables() {
  const Loaded loaded = find_loaded();
  const int file = open(loaded.file.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about {};
  if (file < 0 || fstat(file, &about) != 0) throw std::runtime_error(loaded.file + " cannot be read");
  const auto size = static_cast<size_t>(about.st_size);
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) throw std::runtime_error(loaded.file + " cannot be mapped");
  const char* const bytes = static_cast<const char*>(mapped);
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(bytes);
  const std::span sections(reinterpret_cast<const Elf64_Shdr*>(bytes + header.e_shoff), header.e_shnum);

  std::vector<std::span<char>> variables;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const char* const names = bytes + sections[section.sh_link].sh_offset;
    const std::span symbols(reinterpret_cast<const Elf64_Sym*>(bytes + section.sh_offset),
                            section.sh_size / sizeof(Elf64_Sym));
    for (const Elf64_Sym& symbol : symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
      if (std::string_view(names + symbol.st_name).find(kTag) == std::string_view::npos) continue;
      variables.emplace_back(loaded.address + symbol.st_value, symbol.st_size);
    }
  }
  munmap(mapped, size);
  if (variables.empty()) throw std::runtime_error("no __shared__ variable is found: is " + loaded.file + " stripped?");
  return variables;
}

}  // namespace

// Not with memset: with the address sanitizer guards may follow a variable.
__attribute__((no_sanitize("address"))) void forget_shared_memory() {
  static const std::vector<std::span<char>> variables = shared_variables();
  for (const std::span<char>& variable : variables) {
    for (volatile char* byte = variable.data(); byte != variable.data() + variable.size(); ++byte) *byte = '\xFF';
  }
}

}  // namespace meshtrain::emulated
