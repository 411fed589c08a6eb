#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include <sys/types.h>

namespace orch_ccl {

constexpr size_t kPage = 4096;

// Memory that processes of one user and one pid namespace share. It has no name in any file system, so it leaves no
// files and does not depend on the size of /dev/shm; other processes open it through /proc/PID/fd of its creator.
//
// Addresses are reserved for the whole file, but only the part that was passed to map_to() is mapped. Otherwise a core
// dump, mlockall() or a debugger would allocate every page of a file that is as long as the machine's memory. Core
// dumps exclude the mapped part. The first kHeaderBytes hold a random token; a page that was never touched needs no
// memory.
//
// Not thread-safe, except for id(), bytes(), at() and map_to(). In a forked child the destructor does nothing, because the child
// may have mapped something else at these addresses.
class MemoryFile {
 public:
  static constexpr size_t kHeaderBytes = 64;

  // Creates a file and maps its first page. Throws std::system_error.
  explicit MemoryFile(size_t bytes);
  // Opens the file that process `creator` has published as `id`. The id comes from the store and is not trusted: the
  // creator, owner, type, seals, size and token of the file are checked. Throws std::system_error or
  // std::runtime_error.
  MemoryFile(const std::string& id, pid_t creator);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;

  const std::string& id() const { return id_; }
  size_t bytes() const { return bytes_; }
  char* at(size_t offset) const { return static_cast<char*>(memory_) + offset; }
  // Maps the file up to `end`, which is at most bytes(). Throws std::system_error.
  void map_to(size_t end);
  // Closes the descriptor: afterwards no process can open the file, and this one cannot map more of it.
  void close();
  // Excludes the memory, also what is mapped later, from forked children.
  void exclude_from_children();
  // Called in a forked child, directly after the fork: makes the mapping private to the child.
  void detach();

 private:
  void open_checked(pid_t creator);
  void reserve();
  void release();
  uint64_t& token() const { return *static_cast<uint64_t*>(memory_); }

  int file_ = -1;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
  std::mutex mapping_; // held by map_to() while it changes mapped_
  std::atomic<size_t> mapped_{0}; // bytes from the beginning of the file
  bool kept_from_children_ = false;
  std::string id_;
};

} // namespace orch_ccl
