#include "shared_setup.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <ATen/Parallel.h>

namespace orch_ccl {
namespace {

// The shortest part of a slot per rank. With more ranks on a host, waiting for each other costs more than sharing
// saves.
constexpr size_t kMinShareBytes = 1024;
// How the messages of the ranks begin.
const std::string kSuccess = "ok ";
const std::string kFailure = "no ";
constexpr char kIdSeparator = ',';
// More threads of a rank gain little, because they share the memory's bandwidth.
constexpr int kMaxThreads = 8;

// Every rank comes to the same result, because all know the same members. Two containers count as two hosts.
bool can_share_memory(const std::vector<Identity>& members) {
  const int ranks = static_cast<int>(members.size());
  return slot_bytes_for(ranks) / ranks >= kMinShareBytes && on_one_host(members);
}

// Returns how many ranks may run on the cores of a rank.
int ranks_on_cores_of(const Segment& segment, int rank) {
  int ranks_here = 0;
  for (int other = 0; other < segment.ranks(); ++other) {
    cpu_set_t common;
    CPU_AND(&common, &segment.progress_of(rank).cores, &segment.progress_of(other).cores);
    ranks_here += CPU_COUNT(&common) > 0;
  }
  return ranks_here;
}

// Returns whether more ranks may run on this rank's cores than there are such cores.
bool has_too_few_cores(const Segment& segment, int rank) {
  return ranks_on_cores_of(segment, rank) > CPU_COUNT(&segment.progress_of(rank).cores);
}

// Returns with how many threads each rank can move data: as many as the rank with the fewest cores or threads has, or
// ORCH_CCL_THREADS, which is for tests. All ranks come to the same result.
int threads_per_rank(const Segment& segment) {
  if (const char* value = getenv("ORCH_CCL_THREADS"))
    return std::clamp(atoi(value), 1, kMaxThreads);
  int threads = kMaxThreads;
  for (int rank = 0; rank < segment.ranks(); ++rank) {
    const auto& progress = segment.progress_of(rank);
    threads = std::min({threads, progress.threads, CPU_COUNT(&progress.cores) / ranks_on_cores_of(segment, rank)});
  }
  return std::max(threads, 1);
}

// Lets the ranks of a group perform steps of the setup together, by messages through the store.
class StoreMeeting {
 public:
  StoreMeeting(c10d::Store& store, int rank, std::chrono::steady_clock::time_point deadline)
      : store_(store), rank_(rank), deadline_(deadline) {}

  void publish(const std::string& topic, const std::string& text) { store_.set(key(topic, rank_), text); }

  std::string wait_for(const std::string& topic, int rank) {
    using Millis = std::chrono::milliseconds;
    const auto remaining = std::chrono::duration_cast<Millis>(deadline_ - std::chrono::steady_clock::now());
    store_.wait({key(topic, rank)}, std::max(remaining, Millis(1)));
    return store_.get_to_str(key(topic, rank));
  }

  // Runs `task`, which may throw, on all ranks and returns the results of all ranks. If it fails on any rank, sets
  // `failure_reason`.
  template <typename Task>
  std::vector<std::string> run_on_all_ranks(
      const std::string& topic, int ranks, std::string& failure_reason, Task task) {
    try {
      publish(topic, kSuccess + task());
    } catch (const std::exception& error) {
      publish(topic, kFailure + error.what());
    }
    std::vector<std::string> results;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto text = wait_for(topic, rank);
      const bool succeeded = text.starts_with(kSuccess);
      if (failure_reason.empty() && !succeeded)
        failure_reason = text.starts_with(kFailure)
            ? text.substr(kFailure.size())
            : "rank " + std::to_string(rank) + " wrote an invalid message to the store";
      results.push_back(succeeded ? text.substr(kSuccess.size()) : "");
    }
    return results;
  }

 private:
  static std::string key(const std::string& topic, int rank) { return "shared/" + topic + "/" + std::to_string(rank); }

  c10d::Store& store_;
  int rank_;
  std::chrono::steady_clock::time_point deadline_;
};

using Segments = std::vector<std::shared_ptr<Segment>>;

// Creates segments on rank 0 and opens them on the others. Returns none and sets `failure_reason` if any rank fails.
Segments create_common_segments(
    StoreMeeting& meeting, const std::string& topic, int count, int rank, const std::vector<Identity>& members,
    std::string& failure_reason) {
  const int ranks = static_cast<int>(members.size());
  Segments segments;
  meeting.run_on_all_ranks(topic, ranks, failure_reason, [&] {
    std::string ids;
    if (rank == 0) {
      for (int i = 0; i < count; ++i)
        segments.push_back(Segment::create(ranks));
    } else {
      const auto offer = meeting.wait_for(topic, 0);
      if (!offer.starts_with(kSuccess))
        throw std::runtime_error("rank 0 could not create it");
      std::istringstream offered(offer.substr(kSuccess.size()));
      for (std::string id; std::getline(offered, id, kIdSeparator);)
        segments.push_back(Segment::open(id, static_cast<pid_t>(members[0].pid), ranks));
      if (static_cast<int>(segments.size()) != count)
        throw std::runtime_error("rank 0 has created another number of segments");
    }
    auto& progress = segments.at(0)->progress_of(rank);
    sched_getaffinity(0, sizeof(cpu_set_t), &progress.cores);
    progress.threads = at::get_num_threads();
    for (const auto& segment : segments)
      ids += segment->id() + kIdSeparator;
    return ids;
  });
  return failure_reason.empty() ? segments : Segments();
}

// Adds segments, one for each further thread with which every rank can move data. Without them, one thread does it.
void add_segments(
    StoreMeeting& meeting, int rank, const std::vector<Identity>& members, Segments& segments) {
  const int threads = threads_per_rank(*segments[0]);
  if (threads == 1)
    return;
  std::string failure_reason;
  for (auto& segment : create_common_segments(meeting, "segments", threads - 1, rank, members, failure_reason))
    segments.push_back(std::move(segment));
}

// Lets each rank map the heaps of all others. Returns no heaps and sets `failure_reason` if any rank fails.
Heaps map_heaps(StoreMeeting& meeting, int rank, const std::vector<Identity>& members, std::string& failure_reason) {
  const int ranks = static_cast<int>(members.size());
  const auto ids = meeting.run_on_all_ranks("heap", ranks, failure_reason, [] { return Heap::get().id(); });
  Heaps heaps;
  if (failure_reason.empty())
    meeting.run_on_all_ranks("heaps", ranks, failure_reason, [&] {
      heaps = Heaps(rank, ids, members);
      return "";
    });
  return failure_reason.empty() ? heaps : Heaps();
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
  if (!can_share_memory(members))
    return {};
  StoreMeeting meeting(store, rank, deadline);
  std::string failure_reason, no_heaps_reason;
  auto segments = create_common_segments(meeting, "segment", 1, rank, members, failure_reason);
  if (segments.empty())
    return {nullptr, failure_reason};
  add_segments(meeting, rank, members, segments);
  for (const auto& segment : segments)
    segment->close();
  auto heaps = map_heaps(meeting, rank, members, no_heaps_reason);
  return {
      std::make_unique<SharedExchanges>(segments, std::move(heaps), rank), "", has_too_few_cores(*segments[0], rank),
      no_heaps_reason};
}

} // namespace orch_ccl
