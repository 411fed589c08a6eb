#include "memory_file.h"

#include <random>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace orch_ccl {
namespace {

[[noreturn]] void failed(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

uint64_t random_token() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

} // namespace

MemoryFile::MemoryFile(size_t bytes) : bytes_(bytes) {
  file_ = memfd_create("orch-ccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file_ < 0)
    failed("memfd_create");
  try {
    if (ftruncate(file_, static_cast<off_t>(bytes)) != 0)
      failed("ftruncate");
    fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW); // or an access might meet no memory
    map();
  } catch (...) {
    close();
    throw;
  }
  token() = random_token();
  std::ostringstream id;
  id << getpid() << " " << file_ << " " << token();
  id_ = id.str();
}

MemoryFile::MemoryFile(const std::string& id) : id_(id) {
  std::istringstream in(id);
  long pid = 0;
  int number = 0;
  uint64_t token = 0;
  in >> pid >> number >> token;
  const auto path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0)
    failed(path);
  try {
    struct stat about;
    if (fstat(file_, &about) != 0)
      failed(path);
    bytes_ = static_cast<size_t>(about.st_size);
    if (bytes_ < kPage)
      throw std::runtime_error(path + " is not the group's memory");
    map();
  } catch (...) {
    close();
    throw;
  }
  if (this->token() == token)
    return;
  munmap(memory_, bytes_);
  close();
  throw std::runtime_error(path + " is not the group's memory");
}

void MemoryFile::map() {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (memory == MAP_FAILED)
    failed("mmap");
  memory_ = memory;
}

void MemoryFile::keep_from_children() {
  madvise(memory_, bytes_, MADV_DONTFORK);
}

void MemoryFile::detach(size_t bytes) {
  constexpr int own = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
  if (mmap(memory_, bytes, PROT_READ | PROT_WRITE, own, file_, 0) == MAP_FAILED)
    mprotect(memory_, bytes, PROT_READ); // rather a crash than a parent whose tensors change
}

void MemoryFile::close() {
  if (file_ >= 0)
    ::close(file_);
  file_ = -1;
}

MemoryFile::~MemoryFile() {
  close();
  munmap(memory_, bytes_);
}

} // namespace orch_ccl
