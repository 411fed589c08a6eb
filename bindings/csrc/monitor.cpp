#include "monitor.h"

#include <future>
#include <thread>

#include <sys/prctl.h>

#include "engine.h"
#include "groups.h"

namespace orch_ccl {
namespace {

constexpr auto kTick = Millis(100);
constexpr auto kStoreLimit = Millis(3000);

// The store's server may be gone or unreachable, and its client then blocks for minutes. What we ask it
// here is only for a better message, so never wait long.
template <typename Result>
Result ask(Result otherwise, std::function<Result()> question) {
  auto promise = std::make_shared<std::promise<Result>>();
  auto answer = promise->get_future();
  std::thread([promise, otherwise, question = std::move(question)] {
    try {
      promise->set_value(question());
    } catch (...) {
      promise->set_value(otherwise);
    }
  }).detach();
  return answer.wait_for(kStoreLimit) == std::future_status::ready ? answer.get() : otherwise;
}

// What a rank waits for at present: "12 allreduce". One key a rank, however long the job runs.
std::string waiting_key(int rank) {
  return "waiting/" + std::to_string(rank);
}

struct Waiting {
  uint64_t sequence = 0; // of none: 0
  std::string name;
};

Waiting waiting(c10d::Store& store, int rank) {
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

void post_waiting(const WorkPtr& work) {
  auto store = work->group().store();
  if (!store || work->lane().kind != Lane::collective)
    return;
  ask<bool>(false, [store, work] {
    store->set(
        waiting_key(work->group().rank()), std::to_string(work->getSequencenumber()) + " " + work->name());
    return true;
  });
}

std::vector<int> others(const CclWork& work) {
  if (work.lane().peer != kAnyPeer)
    return {work.lane().peer};
  std::vector<int> out;
  for (int rank = 0; rank < work.group().size(); ++rank)
    if (rank != work.group().rank())
      out.push_back(rank);
  return out;
}

// Why this operation can never complete, or "".
std::string hopeless(const WorkPtr& work) {
  const Group& group = work->group();
  if (work->lane().kind == Lane::receiving && work->lane().peer == kAnyPeer && group.size() > 2)
    return ""; // one that is left may still send; if none is, the timeout tells
  const auto self = Identity::of_this_process();
  for (int rank : others(*work))
    if (group.member(rank).same_host(self) && !group.member(rank).alive())
      return group.name_ranks({rank}) + " is gone: its process has ended";
  auto store = group.store();
  if (!store)
    return "";
  return ask<std::string>("", [store, work]() -> std::string {
    for (int rank : others(*work))
      if (store->check({exit_key(rank)}))
        return work->group().name_ranks({rank}) + " has left the job with exit code " +
            store->get_to_str(exit_key(rank));
    return "";
  });
}

// Which members are not in this collective, as far as the store knows.
std::string who_is_missing(const WorkPtr& work) {
  auto store = work->group().store();
  if (work->lane().kind != Lane::collective || !store)
    return "";
  return ask<std::string>("; the store does not answer, so who is missing is not known", [store, work]() -> std::string {
    std::vector<int> missing;
    std::string elsewhere;
    for (int rank : others(*work)) {
      const auto other = waiting(*store, rank);
      if (other.sequence < work->getSequencenumber())
        missing.push_back(rank);
      else if (other.sequence == work->getSequencenumber() && other.name != work->name())
        elsewhere += "; " + work->group().name_ranks({rank}) + " is in " + other.name + " #" +
            std::to_string(other.sequence) + " instead";
    }
    if (missing.empty() && elsewhere.empty())
      return "; all ranks are in it, but the network between them does not deliver";
    return (missing.empty() ? "" : "; missing: " + work->group().name_ranks(missing)) + elsewhere;
  });
}

void look_at(const WorkPtr& work) {
  const auto now = Clock::now();
  const auto waited = std::chrono::duration_cast<Millis>(now - work->submitted());
  if (work->started() && !work->watched.posted && waited > std::min(Millis(1000), work->timeout() / 4)) {
    work->watched.posted = true;
    post_waiting(work);
  }
  std::string reason;
  if (waited > work->timeout()) {
    reason = "timed out after " + std::to_string(work->timeout().count()) + " ms" + who_is_missing(work);
  } else if (waited > Millis(1000) && now - work->watched.looked > Millis(1000)) {
    work->watched.looked = now;
    reason = hopeless(work);
  }
  if (!reason.empty() && !work->isCompleted())
    Engine::get().fail_group(work->group(), reason);
}

void watch_once() {
  for (const auto& work : Engine::get().pending())
    if (work->started() || Clock::now() - work->submitted() > work->timeout())
      look_at(work);
}

void watch() {
  prctl(PR_SET_NAME, "ccl-monitor");
  for (;;) {
    std::this_thread::sleep_for(kTick);
    std::unique_lock<std::mutex> lock;
    if (!Engine::get().open(lock))
      return;
    watch_once();
  }
}

} // namespace

void start_monitor() {
  std::thread(watch).detach();
}

void announce_exit(int status) {
  for (const auto& group : living_groups()) {
    auto store = group->store();
    if (!store)
      continue;
    ask<bool>(false, [store, status, group] {
      store->set(exit_key(group->rank()), std::to_string(status));
      return true;
    });
  }
}

} // namespace orch_ccl
