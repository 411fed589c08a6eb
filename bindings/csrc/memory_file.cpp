#include "memory_file.h"

#include <random>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fork_guard.h"

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020
#endif

namespace orch_ccl {
namespace {

constexpr const char* kName = "orch-ccl";
// The size cannot change, so an access below it never fails, and another process cannot add a seal against writing.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void check(bool condition, const std::string& path, const char* reason) {
  if (!condition)
    throw std::runtime_error(path + " is not the group's memory: " + reason);
}

uint64_t random_token() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

// The parts of a file's id, in this order.
struct FileId {
  long pid = 0;
  int file = -1;
  size_t bytes = 0;
  uint64_t token = 0;
};

FileId parse_id(const std::string& text) {
  FileId id;
  std::istringstream in(text);
  in >> id.pid >> id.file >> id.bytes >> id.token;
  if (!in || !in.eof() || id.pid <= 0 || id.file < 0 || id.bytes < kPage || id.bytes % kPage != 0)
    throw std::runtime_error("invalid id of shared memory");
  return id;
}

std::string descriptor_path(const std::string& process, int file) {
  return "/proc/" + process + "/fd/" + std::to_string(file);
}

// `file` may be opened with O_PATH. The seals are checked later, because they need a full descriptor.
void check_file(int file, const std::string& path, size_t bytes) {
  struct stat status;
  struct statfs filesystem;
  if (fstat(file, &status) != 0 || fstatfs(file, &filesystem) != 0)
    throw_errno(path);
  check(status.st_uid == geteuid(), path, "it belongs to another user");
  check(S_ISREG(status.st_mode) && filesystem.f_type == TMPFS_MAGIC, path, "not a memory file");
  check(static_cast<size_t>(status.st_size) == bytes, path, "wrong size");
  char target[64] = "";
  const ssize_t length = readlink(descriptor_path("self", file).c_str(), target, sizeof(target));
  const auto expected = std::string("/memfd:") + kName;
  check(length > 0 && std::string(target, length).compare(0, expected.size(), expected) == 0, path, "wrong name");
}

// Closes a descriptor at the end of the block.
struct Descriptor {
  int file;
  ~Descriptor() { ::close(file); }
};

} // namespace

MemoryFile::MemoryFile(size_t bytes) : bytes_(bytes) {
  file_ = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file_ < 0)
    throw_errno("memfd_create");
  try {
    if (ftruncate(file_, static_cast<off_t>(bytes)) != 0)
      throw_errno("ftruncate");
    if (fcntl(file_, F_ADD_SEALS, kSeals) != 0)
      throw_errno("F_ADD_SEALS");
    reserve();
    map_to(kPage);
  } catch (...) {
    release();
    throw;
  }
  token() = random_token();
  std::ostringstream id;
  id << getpid() << " " << file_ << " " << bytes_ << " " << token();
  id_ = id.str();
}

MemoryFile::MemoryFile(const std::string& id, pid_t creator) : id_(id) {
  try {
    open_checked(creator);
  } catch (...) {
    release();
    throw;
  }
}

void MemoryFile::open_checked(pid_t creator) {
  const FileId id = parse_id(id_);
  const auto path = descriptor_path(std::to_string(id.pid), id.file);
  check(id.pid == creator, path, "it belongs to another process");
  // O_PATH has no side effects on any type of file: opening a FIFO blocks, opening a device may change its state.
  const Descriptor path_descriptor{open(path.c_str(), O_PATH | O_CLOEXEC)};
  if (path_descriptor.file < 0)
    throw_errno(path);
  check_file(path_descriptor.file, path, id.bytes);
  file_ = open(descriptor_path("self", path_descriptor.file).c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0)
    throw_errno(path);
  // Where vm.memfd_noexec is set, the kernel adds F_SEAL_EXEC.
  check((fcntl(file_, F_GET_SEALS) & ~F_SEAL_EXEC) == kSeals, path, "wrong seals");
  bytes_ = id.bytes;
  reserve();
  map_to(kPage);
  check(token() == id.token, path, "wrong token");
}

void MemoryFile::reserve() {
  void* memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw_errno("mmap");
  memory_ = memory;
}

// The kernel merges adjacent mappings.
void MemoryFile::map_to(size_t end) {
  end = (end + kPage - 1) / kPage * kPage;
  if (end <= mapped_)
    return;
  std::lock_guard<std::mutex> lock(mapping_);
  const size_t begin = mapped_;
  if (end <= begin)
    return;
  const size_t bytes = end - begin;
  constexpr int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
  if (mmap(at(begin), bytes, PROT_READ | PROT_WRITE, flags, file_, static_cast<off_t>(begin)) == MAP_FAILED)
    throw_errno("mmap");
  madvise(at(begin), bytes, MADV_DONTDUMP);
  if (kept_from_children_)
    madvise(at(begin), bytes, MADV_DONTFORK);
  mapped_ = end;
}

void MemoryFile::exclude_from_children() {
  kept_from_children_ = true;
  madvise(memory_, bytes_, MADV_DONTFORK);
}

void MemoryFile::detach() {
  constexpr int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
  if (mmap(memory_, mapped_, PROT_READ | PROT_WRITE, flags, file_, 0) == MAP_FAILED)
    mprotect(memory_, mapped_, PROT_READ); // crash instead of changing the parent's tensors
  madvise(memory_, mapped_, MADV_DONTDUMP);
}

void MemoryFile::close() {
  if (file_ >= 0)
    ::close(file_);
  file_ = -1;
}

void MemoryFile::release() {
  close();
  if (memory_)
    munmap(memory_, bytes_);
}

MemoryFile::~MemoryFile() {
  if (!in_forked_child())
    release();
}

} // namespace orch_ccl
