// Checks that a memory file is opened by its id, and that forged files and ids are rejected, each for its reason.
#include "memory_file.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fork_guard.h"

using namespace orch_ccl;

bool orch_ccl::in_forked_child() {
  return false;
}

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kBytes = 16 * kPage;
constexpr uint64_t kToken = 77;

// Returns a file of this length that holds the token.
int filled(int file) {
  if (file < 0 || ftruncate(file, kBytes) != 0 || pwrite(file, &kToken, sizeof kToken, 0) != sizeof kToken) {
    std::perror("cannot write a file");
    std::exit(1);
  }
  return file;
}

// Returns a file that passes all checks by default.
int memory_file(int seals = kSeals, const char* name = "orch-ccl") {
  const int file = filled(memfd_create(name, MFD_ALLOW_SEALING));
  fcntl(file, F_ADD_SEALS, seals);
  return file;
}

int file_of_another_user() {
  const int file = memory_file();
  return fchown(file, 65534, -1) == 0 ? file : -1;
}

int ordinary_file() {
  char path[] = "/dev/shm/orch-test-XXXXXX";
  const int file = mkstemp(path);
  unlink(path);
  return filled(file);
}

int fifo() {
  char folder[] = "/tmp/orch-test-XXXXXX";
  const auto path = std::string(mkdtemp(folder)) + "/fifo";
  mkfifo(path.c_str(), 0600);
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  unlink(path.c_str());
  rmdir(folder);
  return file;
}

std::string id_of(int file, size_t bytes = kBytes, uint64_t token = kToken) {
  return std::to_string(getpid()) + " " + std::to_string(file) + " " + std::to_string(bytes) + " " +
      std::to_string(token);
}

std::string error_of(const std::string& id, pid_t creator) {
  try {
    MemoryFile file(id, creator);
  } catch (const std::runtime_error& error) { // std::system_error is one
    return error.what();
  }
  return "";
}

void expect(const std::string& reason, const std::string& id, pid_t creator = getpid()) {
  const auto error = error_of(id, creator);
  if (reason.empty() ? !error.empty() : error.find(reason) == std::string::npos) {
    std::printf("'%s': expected '%s', not '%s'\n", id.c_str(), reason.c_str(), error.c_str());
    std::exit(1);
  }
}

} // namespace

int main() {
  const auto process = std::to_string(getpid());
  expect("", MemoryFile(kBytes).id());
  expect("", id_of(memory_file()));
  if (geteuid() == 0)
    expect("belongs to another user", id_of(file_of_another_user()));
  expect("belongs to another process", id_of(memory_file()), getppid());
  expect("wrong seals", id_of(memory_file(0)));
  expect("wrong seals", id_of(memory_file(F_SEAL_GROW | F_SEAL_SEAL)));
  expect("wrong seals", id_of(memory_file(kSeals | 0x10))); // F_SEAL_FUTURE_WRITE
  expect("wrong size", id_of(memory_file(), 2 * kBytes));
  expect("wrong size", id_of(memory_file(), kBytes / 2));
  expect("wrong name", id_of(memory_file(kSeals, "python")));
  expect("wrong name", id_of(ordinary_file()));
  expect("wrong token", id_of(memory_file(), kBytes, kToken + 1));
  expect("not a memory file", id_of(fifo()));
  expect("is not the group's memory", id_of(0)); // standard input
  expect("No such file or directory", id_of(9999));
  expect("invalid id", "1 two 3 4");
  expect("invalid id", process + " -1 65536 77");
  expect("invalid id", process + " 1 99999999999999999999999999 77");
  expect("invalid id", id_of(memory_file()) + " 1");
  expect("invalid id", "");
  std::puts("fine");
  return 0;
}
