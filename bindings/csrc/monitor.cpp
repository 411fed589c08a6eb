#include "monitor.h"

#include <future>
#include <thread>

#include <sys/prctl.h>

#include "engine.h"
#include "groups.h"

namespace orch_ccl {
namespace {

constexpr auto kCheckInterval = Millis(100);
constexpr auto kMaxStoreWait = Millis(3000);
// A rank announces what it waits for after this time, or after a quarter of a short timeout.
constexpr auto kAnnounceAfter = Millis(1000);
// How often an operation that takes long is checked for members that have died.
constexpr auto kFailureCheckInterval = Millis(1000);

// Runs a query of the store with a time limit. The server may be gone or unreachable, in which case its client blocks
// for minutes. The results only improve messages.
template <typename Result>
Result query_store(Result fallback, std::function<Result()> query) {
  auto promise = std::make_shared<std::promise<Result>>();
  auto result = promise->get_future();
  std::thread([promise, fallback, query = std::move(query)] {
    try {
      promise->set_value(query());
    } catch (...) {
      promise->set_value(fallback);
    }
  }).detach();
  return result.wait_for(kMaxStoreWait) == std::future_status::ready ? result.get() : fallback;
}

// Holds what a rank is waiting for, as "12 allreduce". There is one key per rank, however long the job runs.
std::string waiting_key(int rank) {
  return "waiting/" + std::to_string(rank);
}

struct Waiting {
  uint64_t sequence = 0; // 0: none
  std::string name;
};

Waiting read_waiting(c10d::Store& store, int rank) {
  const auto key = waiting_key(rank);
  if (!store.check({key}))
    return {};
  const auto text = store.get_to_str(key);
  const auto split = text.find(' ');
  return {std::stoull(text.substr(0, split)), text.substr(split + 1)};
}

std::string exit_key(int rank) {
  return "exit/" + std::to_string(rank);
}

void announce_waiting(const WorkPtr& work) {
  auto store = work->group().store();
  if (!store || work->lane().kind != Lane::collective)
    return;
  query_store<bool>(false, [store, work] {
    store->set(
        waiting_key(work->group().rank()), std::to_string(work->getSequencenumber()) + " " + work->name());
    return true;
  });
}

std::vector<int> peers_of(const CclWork& work) {
  if (work.lane().peer != kAnyPeer)
    return {work.lane().peer};
  std::vector<int> out;
  for (int rank = 0; rank < work.group().size(); ++rank)
    if (rank != work.group().rank())
      out.push_back(rank);
  return out;
}

// Describes which members are not in this collective, as far as the store knows.
std::string describe_missing_ranks(const WorkPtr& work) {
  auto store = work->group().store();
  if (work->lane().kind != Lane::collective || !store)
    return "";
  const std::string unknown = "; the store does not respond, so the missing ranks are unknown";
  return query_store<std::string>(unknown, [store, work]() -> std::string {
    std::vector<int> missing;
    std::string elsewhere;
    for (int rank : peers_of(*work)) {
      const auto other = read_waiting(*store, rank);
      if (other.sequence < work->getSequencenumber())
        missing.push_back(rank);
      else if (other.sequence == work->getSequencenumber() && other.name != work->name())
        elsewhere += "; " + work->group().name_ranks({rank}) + " is in " + other.name + " #" +
            std::to_string(other.sequence) + " instead";
    }
    if (missing.empty() && elsewhere.empty())
      return "; all ranks have started it, but the network between them does not deliver";
    return (missing.empty() ? "" : "; missing: " + work->group().name_ranks(missing)) + elsewhere;
  });
}

void check_operation(const WorkPtr& work) {
  const auto now = Clock::now();
  const auto waited = std::chrono::duration_cast<Millis>(now - work->submitted());
  if (work->started() && !work->monitor_state.announced && waited > std::min(kAnnounceAfter, work->timeout() / 4)) {
    work->monitor_state.announced = true;
    announce_waiting(work);
  }
  std::string reason;
  if (waited > work->timeout()) {
    reason = "timed out after " + std::to_string(work->timeout().count()) + " ms" + describe_missing_ranks(work);
  } else if (waited > kFailureCheckInterval && now - work->monitor_state.last_checked > kFailureCheckInterval) {
    work->monitor_state.last_checked = now;
    reason = find_failure(work);
  }
  if (!reason.empty() && !work->isCompleted())
    Engine::get().fail_group(work->group(), reason);
}

void check_pending_operations() {
  for (const auto& work : Engine::get().pending())
    if (work->started() || Clock::now() - work->submitted() > work->timeout())
      check_operation(work);
}

void run_monitor() {
  prctl(PR_SET_NAME, "ccl-monitor");
  for (;;) {
    std::this_thread::sleep_for(kCheckInterval);
    std::unique_lock<std::mutex> lock;
    if (!Engine::get().lock_if_open(lock))
      return;
    check_pending_operations();
  }
}

} // namespace

void start_monitor() {
  std::thread(run_monitor).detach();
}

std::string find_failure(const WorkPtr& work) {
  const Group& group = work->group();
  if (work->lane().kind == Lane::receiving && work->lane().peer == kAnyPeer && group.size() > 2)
    return ""; // a remaining rank may still send; otherwise the timeout applies
  const auto self = Identity::of_this_process();
  for (int rank : peers_of(*work))
    if (group.member(rank).same_host(self) && !group.member(rank).alive())
      return group.name_ranks({rank}) + " is gone: its process has ended";
  auto store = group.store();
  if (!store)
    return "";
  return query_store<std::string>("", [store, work]() -> std::string {
    for (int rank : peers_of(*work))
      if (store->check({exit_key(rank)}))
        return work->group().name_ranks({rank}) + " has left the job with exit code " +
            store->get_to_str(exit_key(rank));
    return "";
  });
}

void announce_exit(int status) {
  for (const auto& group : living_groups()) {
    auto store = group->store();
    if (!store)
      continue;
    query_store<bool>(false, [store, status, group] {
      store->set(exit_key(group->rank()), std::to_string(status));
      return true;
    });
  }
}

} // namespace orch_ccl
