#include "fsdp/shard_memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "mesh/base/size_text.h"
#include "mesh/device/meta_device.h"
#include "mesh/device/pinned_memory.h"

namespace meshtrain {
namespace {

int64_t full_pages(int64_t bytes) {
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

}  // namespace

class ShardMemory::File {
 public:
  explicit File(const std::filesystem::path& folder) : folder_(folder) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Reserves `bytes` more at the end. Returns their offset.
  int64_t reserve(int64_t bytes) {
    if (descriptor_ < 0) open();
    const int64_t begin = size_;
    const int error = ::posix_fallocate(descriptor_, begin, bytes);
    if (error != 0) fail("cannot reserve " + size_text(bytes) + " after " + size_text(begin), error);
    size_ += bytes;
    return begin;
  }

  // Asks for write errors of all pages of the file. Waits for none: the range begins at the file's end, where no page
  // lies.
  void check_written() const {
    if (descriptor_ < 0) return;
    // The system reports an error once; what is lost stays lost.
    if (lost_ == 0 && ::sync_file_range(descriptor_, size_, 1, SYNC_FILE_RANGE_WAIT_BEFORE) != 0) lost_ = errno;
    if (lost_ != 0 && lost_ != ENOSYS) fail("some of the shards could not be written, and are lost", lost_);
  }

  [[noreturn]] void fail(const std::string& what, int error) const {
    throw std::runtime_error(
        "offload to disk: " + what + " in " + folder_.string() + ": " + std::strerror(error) +
        (descriptor_ < 0 ? ": give a folder that can be written to" : ": make room, or give a folder on another disk"));
  }

  /// Counts bytes without reserving them.
  void count(int64_t bytes) { size_ += bytes; }

  int descriptor() const { return descriptor_; }
  int64_t size() const { return size_; }

 private:
  void open() {
    std::error_code failed;  // mkostemp says why
    std::filesystem::create_directory(folder_, failed);
    std::string name = (folder_ / "meshtrain-shards-XXXXXX").string();
    descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail("cannot make a file", errno);
    ::unlink(name.c_str());
  }

  std::filesystem::path folder_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  mutable int lost_ = 0;  // the first error of check_written()
};

namespace {

/// A mapped piece of the file: the context of the storage that lies in it.
struct Mapping {
  std::shared_ptr<void> file;  // stays open as long as its pieces
  int descriptor;
  int64_t offset;
  void* address;
  int64_t bytes;
};

void unmap(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  ::munmap(mapping->address, static_cast<size_t>(mapping->bytes));
}

/// Returns nullptr for a tensor in ordinary memory.
const Mapping* mapping_of(const at::Tensor& tensor) {
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return data.get_deleter() == &unmap ? static_cast<const Mapping*>(data.get_context()) : nullptr;
}

}  // namespace

ShardMemory ShardMemory::on_disk(const std::filesystem::path& folder) {
  ShardMemory memory;
  memory.file_ = std::make_shared<File>(folder);
  return memory;
}

ShardMemory ShardMemory::on_host() {
  ShardMemory memory;
  memory.host_bytes_ = std::make_shared<int64_t>(0);
  return memory;
}

bool ShardMemory::leaves(at::Device device) const {
  return is_gpu(device) && (file_ || host_bytes_);
}

void ShardMemory::check_written() const {
  if (file_) file_->check_written();
}

int64_t ShardMemory::disk_bytes() const {
  return file_ ? file_->size() : 0;
}

int64_t ShardMemory::host_bytes() const {
  return host_bytes_ ? *host_bytes_ : 0;
}

at::Tensor ShardMemory::zeros(int64_t numel, const at::TensorOptions& options) const {
  const at::Device device = options.device();
  const bool on_host = host_bytes_ && is_gpu(device);
  if (numel == 0) return at::zeros({0}, leaves(device) && !device.is_meta() ? options.device(at::kCPU) : options);
  if (!file_ && !on_host) return at::zeros({numel}, options);
  const int64_t bytes = full_pages(numel * static_cast<int64_t>(options.dtype().itemsize()));
  const at::ScalarType dtype = at::typeMetaToScalarType(options.dtype());
  if (on_host) *host_bytes_ += bytes;
  if (device.is_meta()) {
    if (file_) file_->count(bytes);
    return uncounted_meta(numel, dtype);
  }
  if (on_host) return pinned_zeros(numel, dtype, device, ", or give parallel.fsdp.offload.to: disk");
  const int64_t offset = file_->reserve(bytes);
  void* address =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_->descriptor(), offset);
  if (address == MAP_FAILED) file_->fail("cannot map " + size_text(bytes), errno);
  auto* mapping = new Mapping{file_, file_->descriptor(), offset, address, bytes};
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                             c10::DataPtr(address, mapping, &unmap, at::kCPU), /*allocator=*/nullptr,
                             /*resizable=*/false);
  return at::empty({0}, at::TensorOptions(at::kCPU).dtype(dtype)).set_(storage, 0, {numel});
}

void fetch_ahead(const at::Tensor& tensor) {
  const Mapping* mapping = mapping_of(tensor);
  if (mapping) ::madvise(mapping->address, static_cast<size_t>(mapping->bytes), MADV_WILLNEED);
}

void set_aside(const at::Tensor& tensor) {
  const Mapping* mapping = mapping_of(tensor);
  if (!mapping) return;
  ::madvise(mapping->address, static_cast<size_t>(mapping->bytes), MADV_DONTNEED);
  ::sync_file_range(mapping->descriptor, mapping->offset, mapping->bytes, SYNC_FILE_RANGE_WRITE);
}

}  // namespace meshtrain
