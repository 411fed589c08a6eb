#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/types.h>

namespace orch_ccl {

constexpr size_t kPage = 4096;

// Memory that processes of one user and one pid namespace map together. It has no name in any file system, so nothing
// is left behind and /dev/shm's size does not matter; other processes open it through /proc/PID/fd of its creator.
//
// The addresses of the whole file are reserved, but only what map_to() was called for is mapped: a core dump, mlockall()
// or a debugger would otherwise allocate every page of a file that is as long as the machine's memory. Core dumps leave
// out what is mapped. The first kHeaderBytes hold a random token; a page that nobody has touched takes no memory.
//
// In a forked child the destructor does nothing: the child may have mapped something else at these addresses.
class MemoryFile {
 public:
  static constexpr size_t kHeaderBytes = 64;

  // Creates a file, with its first page mapped. Raises std::system_error.
  explicit MemoryFile(size_t bytes);
  // Opens the file that process `creator` calls `id`. `id` comes from the store, so everything about the file is checked:
  // creator, owner, type, seals, size and token. Raises std::system_error or std::runtime_error.
  MemoryFile(const std::string& id, pid_t creator);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;

  const std::string& id() const { return id_; }
  size_t bytes() const { return bytes_; }
  char* at(size_t offset) const { return static_cast<char*>(memory_) + offset; }
  // Maps what lies before `end`, which is at most bytes(). One thread at a time. Raises std::system_error.
  void map_to(size_t end);
  // Closes the descriptor: nobody can open or map any more of it.
  void close();
  // A forked child gets none of it, neither of what is mapped already nor of what will be.
  void keep_from_children();
  // Called in a child that was just forked: what it writes stays its own.
  void detach();

 private:
  void open_checked(pid_t creator);
  void reserve();
  void release();
  uint64_t& token() const { return *static_cast<uint64_t*>(memory_); }

  int file_ = -1;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
  std::atomic<size_t> mapped_{0}; // bytes, from the beginning
  bool kept_from_children_ = false;
  std::string id_;
};

} // namespace orch_ccl
