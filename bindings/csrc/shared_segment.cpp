#include "shared_segment.h"

#include <algorithm>
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

constexpr size_t kPage = 4096;
constexpr size_t kLongestSlot = 256 * 1024; // with the others' it stays in the second-level cache
constexpr size_t kMost = 64 * 1024 * 1024; // bytes in all
constexpr size_t kLine = 64;
// The first page: the token, and from here on the best routes.
constexpr size_t kBestRoutes = 128;
constexpr int kDigits = 64;

size_t pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

size_t header_bytes(int ranks) {
  return kPage + pages(ranks * sizeof(Progress));
}

[[noreturn]] void failed(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

uint64_t random_token() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

} // namespace

size_t slot_bytes_for(int ranks) {
  const size_t fair = kMost / (ranks * kSlots);
  const size_t share = std::min(kLongestSlot, fair) / ranks / kLine * kLine;
  return share * ranks; // a rank's share of a slot begins at a cache line
}

Segment::Segment(int file, int ranks) : file_(file), ranks_(ranks), slot_bytes_(slot_bytes_for(ranks)) {
  bytes_ = header_bytes(ranks) + pages(slot_bytes_) * kSlots * ranks;
}

std::shared_ptr<Segment> Segment::make(int ranks) {
  const int file = memfd_create("orch-ccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0)
    failed("memfd_create");
  std::shared_ptr<Segment> made(new Segment(file, ranks));
  if (ftruncate(file, static_cast<off_t>(made->bytes_)) != 0)
    failed("ftruncate");
  fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW); // or an access might meet no memory
  made->map();
  made->token() = random_token();
  std::ostringstream id;
  id << getpid() << " " << file << " " << made->token();
  made->id_ = id.str();
  return made;
}

std::shared_ptr<Segment> Segment::open(const std::string& id, int ranks) {
  std::istringstream in(id);
  long pid = 0;
  int number = 0;
  uint64_t token = 0;
  in >> pid >> number >> token;
  const auto path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    failed(path.c_str());
  std::shared_ptr<Segment> opened(new Segment(file, ranks));
  struct stat about;
  if (fstat(file, &about) != 0 || static_cast<size_t>(about.st_size) != opened->bytes_)
    throw std::runtime_error(path + " is not the group's memory");
  opened->map();
  if (opened->token() != token)
    throw std::runtime_error(path + " is not the group's memory");
  opened->id_ = id;
  return opened;
}

void Segment::map() {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED)
    failed("mmap");
  memory_ = memory;
  madvise(memory_, bytes_, MADV_DONTFORK); // a forked child has no part in this
}

void Segment::close() {
  if (file_ >= 0)
    ::close(file_);
  file_ = -1;
}

Segment::~Segment() {
  close();
  if (memory_)
    munmap(memory_, bytes_);
}

Progress& Segment::of(int rank) const {
  return reinterpret_cast<Progress*>(static_cast<char*>(memory_) + kPage)[rank];
}

std::atomic<Route>& Segment::best_route(int kind, int digits) const {
  return reinterpret_cast<std::atomic<Route>*>(static_cast<char*>(memory_) + kBestRoutes)[kind * (kDigits + 1) + digits];
}

char* Segment::slot(int rank, uint64_t round) const {
  const size_t number = rank * kSlots + round % kSlots;
  return static_cast<char*>(memory_) + header_bytes(ranks_) + number * pages(slot_bytes_);
}

} // namespace orch_ccl
