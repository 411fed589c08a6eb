#include "shared_setup.h"

#include <algorithm>
#include <cstdlib>

namespace orch_ccl {
namespace {

// Of a slot; with more ranks on one host the shares are too short to be worth the waiting.
constexpr size_t kLeastShare = 1024;
const std::string kDone = "ok ";
const std::string kNot = "no ";

// From what every rank knows alike. Two containers are two hosts here.
bool possible(const std::vector<Identity>& members) {
  const int ranks = static_cast<int>(members.size());
  return slot_bytes_for(ranks) / ranks >= kLeastShare &&
      std::all_of(members.begin(), members.end(), [&](const auto& one) { return one.same_host(members[0]); });
}

class Meeting {
 public:
  Meeting(c10d::Store& store, int rank, std::chrono::steady_clock::time_point deadline)
      : store_(store), rank_(rank), deadline_(deadline) {}

  void say(const std::string& text) { store_.set(key(rank_), text); }

  std::string hear(int rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    store_.wait({key(rank)}, std::max(left, std::chrono::milliseconds(1)));
    return store_.get_to_str(key(rank));
  }

 private:
  static std::string key(int rank) { return "shared/" + std::to_string(rank); }

  c10d::Store& store_;
  int rank_;
  std::chrono::steady_clock::time_point deadline_;
};

// What rank 0 made, and tells of; or null, and why.
std::shared_ptr<Segment> offered(Meeting& meeting, int ranks) {
  try {
    auto segment = Segment::make(ranks);
    sched_getaffinity(0, sizeof(cpu_set_t), &segment->of(0).cores);
    meeting.say(kDone + segment->id());
    return segment;
  } catch (const std::exception& error) {
    meeting.say(kNot + error.what());
    return nullptr;
  }
}

std::shared_ptr<Segment> taken(Meeting& meeting, int rank, int ranks) {
  const auto offer = meeting.hear(0);
  try {
    if (offer.compare(0, kDone.size(), kDone) != 0)
      throw std::runtime_error("rank 0 did not make it");
    auto segment = Segment::open(offer.substr(kDone.size()), ranks);
    sched_getaffinity(0, sizeof(cpu_set_t), &segment->of(rank).cores);
    meeting.say(kDone);
    return segment;
  } catch (const std::exception& error) {
    meeting.say(kNot + error.what());
    return nullptr;
  }
}

// Whether, among the ranks that may run on this one's cores, there are more than cores.
bool too_few_cores(const Segment& segment, int rank) {
  const auto& mine = segment.of(rank).cores;
  int here = 0;
  for (int other = 0; other < segment.ranks(); ++other) {
    cpu_set_t both;
    CPU_AND(&both, &mine, &segment.of(other).cores);
    here += CPU_COUNT(&both) > 0;
  }
  return here > CPU_COUNT(&mine);
}

} // namespace

bool sharing_asked() {
  static const bool asked = [] {
    const char* value = getenv("ORCH_CCL_SHARED_MEMORY");
    return value && std::string(value) == "1";
  }();
  return asked;
}

Sharing share_memory(
    c10d::Store& store, int rank, const std::vector<Identity>& members, std::chrono::steady_clock::time_point deadline) {
  const int ranks = static_cast<int>(members.size());
  if (!possible(members))
    return {};
  Meeting meeting(store, rank, deadline);
  const auto segment = rank == 0 ? offered(meeting, ranks) : taken(meeting, rank, ranks);
  std::string trouble;
  for (int other = 0; other < ranks; ++other)
    if (const auto told = meeting.hear(other); trouble.empty() && told.compare(0, kNot.size(), kNot) == 0)
      trouble = told.substr(kNot.size());
  if (!trouble.empty())
    return {nullptr, trouble};
  segment->close();
  return {std::make_unique<SharedExchanges>(segment, rank), "", too_few_cores(*segment, rank)};
}

} // namespace orch_ccl
