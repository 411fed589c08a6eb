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
  return slot_bytes_for(ranks) / ranks >= kLeastShare && on_one_host(members);
}

class Meeting {
 public:
  Meeting(c10d::Store& store, int rank, std::chrono::steady_clock::time_point deadline)
      : store_(store), rank_(rank), deadline_(deadline) {}

  void say(const std::string& what, const std::string& text) { store_.set(key(what, rank_), text); }

  std::string hear(const std::string& what, int rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    store_.wait({key(what, rank)}, std::max(left, std::chrono::milliseconds(1)));
    return store_.get_to_str(key(what, rank));
  }

  // All do `what`, or none: then `trouble` is why. -> what each rank told of it; `mine` is this rank's, and may raise.
  template <typename Mine>
  std::vector<std::string> agree(const std::string& what, int ranks, std::string& trouble, Mine mine) {
    try {
      say(what, kDone + mine());
    } catch (const std::exception& error) {
      say(what, kNot + error.what());
    }
    std::vector<std::string> told;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto text = hear(what, rank);
      const bool done = text.starts_with(kDone);
      if (trouble.empty() && !done)
        trouble = text.starts_with(kNot) ? text.substr(kNot.size())
                                         : "rank " + std::to_string(rank) + " wrote an invalid message to the store";
      told.push_back(done ? text.substr(kDone.size()) : "");
    }
    return told;
  }

 private:
  static std::string key(const std::string& what, int rank) { return "shared/" + what + "/" + std::to_string(rank); }

  c10d::Store& store_;
  int rank_;
  std::chrono::steady_clock::time_point deadline_;
};

// What rank 0 made, opened by the others; or null, and why.
std::shared_ptr<Segment> common_segment(
    Meeting& meeting, int rank, const std::vector<Identity>& members, std::string& trouble) {
  const int ranks = static_cast<int>(members.size());
  std::shared_ptr<Segment> segment;
  meeting.agree("segment", ranks, trouble, [&] {
    if (rank == 0) {
      segment = Segment::make(ranks);
    } else {
      const auto offer = meeting.hear("segment", 0);
      if (!offer.starts_with(kDone))
        throw std::runtime_error("rank 0 did not make it");
      segment = Segment::open(offer.substr(kDone.size()), static_cast<pid_t>(members[0].pid), ranks);
    }
    sched_getaffinity(0, sizeof(cpu_set_t), &segment->of(rank).cores);
    return segment->id();
  });
  return trouble.empty() ? segment : nullptr;
}

// Each rank's, mapped by all; or none, and why.
Heaps common_heaps(Meeting& meeting, int rank, const std::vector<Identity>& members, std::string& trouble) {
  const int ranks = static_cast<int>(members.size());
  const auto ids = meeting.agree("heap", ranks, trouble, [] { return Heap::own().id(); });
  Heaps heaps;
  if (trouble.empty())
    meeting.agree("heaps", ranks, trouble, [&] {
      heaps = Heaps(rank, ids, members);
      return "";
    });
  return trouble.empty() ? heaps : Heaps();
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

bool sharing_allowed() {
  static const bool allowed = [] {
    const char* value = getenv("ORCH_CCL_SHARED_MEMORY");
    return !value || std::string(value) != "0";
  }();
  return allowed;
}

Sharing share_memory(
    c10d::Store& store, int rank, const std::vector<Identity>& members, std::chrono::steady_clock::time_point deadline) {
  if (!possible(members))
    return {};
  Meeting meeting(store, rank, deadline);
  std::string trouble, no_heaps;
  const auto segment = common_segment(meeting, rank, members, trouble);
  if (!segment)
    return {nullptr, trouble};
  segment->close();
  auto heaps = common_heaps(meeting, rank, members, no_heaps);
  return {
      std::make_unique<SharedExchanges>(segment, std::move(heaps), rank), "", too_few_cores(*segment, rank), no_heaps};
}

} // namespace orch_ccl
