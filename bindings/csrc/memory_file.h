#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace orch_ccl {

constexpr size_t kPage = 4096;

// Memory that processes of one user and one pid namespace map together. It has no name in any file system, so nothing
// is left behind and /dev/shm's size does not matter; the others open it through /proc/PID/fd of the process that made
// it. What lies in its first kTold bytes tells it from others'; a page that nobody has touched takes no memory.
class MemoryFile {
 public:
  static constexpr size_t kTold = 64;

  // A new one. Raises std::system_error.
  explicit MemoryFile(size_t bytes);
  // The one that another process calls `id`. Raises std::system_error, or std::runtime_error if that is something else.
  explicit MemoryFile(const std::string& id);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;

  const std::string& id() const { return id_; }
  size_t bytes() const { return bytes_; }
  char* at(size_t offset) const { return static_cast<char*>(memory_) + offset; }
  // From now on nobody else can map it.
  void close();
  // A child that is forked has no part in it.
  void keep_from_children();
  // In a child that was just forked: what it writes to the first `bytes` stays its own.
  void detach(size_t bytes);

 private:
  void map();
  uint64_t& token() const { return *static_cast<uint64_t*>(memory_); }

  int file_ = -1;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
  std::string id_;
};

} // namespace orch_ccl
