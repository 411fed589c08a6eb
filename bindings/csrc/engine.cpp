#include "engine.h"

#include <algorithm>
#include <optional>
#include <thread>

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include "callbacks.h"
#include "fork_guard.h"
#include "groups.h"
#include "monitor.h"
#include "threads.h"

namespace orch_ccl {
namespace {

// How often to look while nothing has come. A look that cost more than this much processor time has
// moved data, and more will follow at once.
constexpr auto kMoved = std::chrono::nanoseconds(5'000);

std::chrono::nanoseconds processor_time() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// A thread that waits keeps the core for about a round trip between hosts before it yields: on a busy
// machine a yield may cost it milliseconds.
constexpr auto kRoundTrip = std::chrono::microseconds(200);
// A yield that took this long has let others run. Whoever keeps yielding to them still gets his share of the core.
constexpr auto kLetRun = std::chrono::microseconds(50);

class Patience {
 public:
  // `keeps`: does not give the core away at once, while nothing comes.
  explicit Patience(bool keeps) : keeps_(keeps) {}

  void pause(bool progressed) {
    const auto used = processor_time();
    if (progressed || used - used_ > kMoved)
      since_ = Clock::now();
    const auto idle = Clock::now() - since_;
    if (keeps_ && idle < kRoundTrip) {
      __builtin_ia32_pause();
    } else if (idle < Millis(5) && !wanted_) {
      const auto before = Clock::now();
      sched_yield();
      wanted_ = keeps_ && Clock::now() - before > kLetRun;
    } else {
      const timespec time{0, idle < Millis(2000) ? 20'000 : 500'000};
      nanosleep(&time, nullptr);
    }
    used_ = processor_time();
  }

 private:
  const bool keeps_;
  bool wanted_ = false; // others want this core as well
  Clock::time_point since_ = Clock::now();
  std::chrono::nanoseconds used_ = processor_time();
};

// Between hosts a link that waits for this thread is lost time, which the computation does not make up for: 5 % of a
// step of BERT-base between four hosts at 1 Gbit/s.
bool all_on_one_host() {
  const auto groups = living_groups();
  return std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group->on_one_host(); });
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "unknown error";
  }
}

std::exception_ptr failure(const CclWork& work, const std::string& reason) {
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "ccl: " + work.describe() + ": " + reason));
}

// oneCCL does not say what it was doing.
std::exception_ptr told(const CclWork& work, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Disagreement& known) {
    return failure(work, known.what());
  } catch (const OtherCall& other) {
    return failure(
        work,
        work.group().name_ranks({other.rank}) +
            " calls another collective, or this one with another size, dtype, root or operation "
            "(ORCH_CCL_CHECK=1 on all ranks tells which)");
  } catch (const ccl::exception& known) {
    return failure(
        work,
        known.what() +
            std::string(" (do all ranks call the same collectives in the same order, with the same sizes?)"));
  } catch (...) {
    return error;
  }
}

} // namespace

Engine& Engine::get() {
  static auto* instance = new Engine; // its threads outlive static destructors
  return *instance;
}

Engine::Engine() {
  std::thread([this] { communicate(); }).detach();
  start_monitor();
}

void Engine::submit(const WorkPtr& work) {
  require_parent_process();
  if (const auto reason = work->group().broken())
    C10_THROW_ERROR(
        DistBackendError,
        "ccl: " + work->describe() + " cannot run, because this group failed before: " + *reason);
  std::vector<Done> done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = lanes_[work->lane()];
    queue.push_back(work);
    ++pending_;
    ++unsettled_;
    if (queue.size() == 1)
      progress(done, false); // start at once, on this thread
  }
  settle(done);
  // A synchronous caller waits right after this call and drives the operation itself.
  if (work->async() && pending_ > 0)
    wake_.notify_one();
}

bool Engine::progress(std::vector<Done>& done, bool keen) {
  const size_t before = done.size();
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    auto& queue = lane->second;
    while (!queue.empty()) {
      auto& work = queue.front();
      std::exception_ptr error;
      try {
        if (!work->started())
          work->start();
        if (!work->test(keen))
          break;
        work->finish_operation();
      } catch (...) {
        error = told(*work, std::current_exception());
        work->keep_buffers_forever(); // destroying an event that never completes waits for it
      }
      done.push_back({work, error});
      queue.pop_front();
      --pending_;
    }
    lane = queue.empty() ? lanes_.erase(lane) : std::next(lane);
  }
  return done.size() > before;
}

void Engine::settle(std::vector<Done>& done) {
  size_t settled = 0;
  for (auto& [work, error] : done) {
    if (error)
      work->group().mark_broken(work->name() + ": " + text_of(error));
    if (work->complete(error))
      call_elsewhere([this, work = std::move(work)]() mutable { complete_future(std::move(work)); });
    else
      ++settled;
  }
  done.clear(); // before close() may go on: tensors of Python cannot be destroyed after its end
  unsettled_ -= settled;
}

void Engine::complete_future(WorkPtr work) {
  if (!closed_)
    work->complete_future();
  work.reset();
  --unsettled_;
}

bool Engine::drive(CclWork& work, Millis timeout) {
  const auto until = Clock::now() + timeout;
  const bool keen = !work.group().crowded();
  std::vector<Done> done;
  std::optional<Patience> patience; // what it measures costs as much as a short message
  ++waiters_;
  while (!work.isCompleted()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      progress(done, keen);
    }
    const bool progressed = !done.empty();
    settle(done);
    if (work.isCompleted() || (timeout.count() > 0 && Clock::now() > until))
      break;
    if (patience)
      patience->pause(progressed);
    else
      patience.emplace(keen);
  }
  if (--waiters_ == 0 && pending_ > 0)
    wake_.notify_one();
  return work.isCompleted();
}

void Engine::communicate() {
  become_background_thread("ccl-comm");
  if (all_on_one_host())
    give_way();
  prctl(PR_SET_TIMERSLACK, 1000UL); // short sleeps are meant to be short
  std::vector<Done> done;
  for (;;) {
    Patience patience(false);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      // The time limit is for a synchronous operation whose caller did not wait after all.
      while (closed_ || pending_ == 0 || waiters_ > 0)
        wake_.wait_for(lock, Millis(pending_ > 0 ? 20 : 1000));
    }
    while (!closed_ && pending_ > 0 && waiters_ == 0) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        progress(done, false);
      }
      patience.pause(!done.empty());
      settle(done);
    }
  }
}

void Engine::fail_group(Group& group, const std::string& reason) {
  std::vector<Done> done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    group.mark_broken(reason);
    for (auto lane = lanes_.begin(); lane != lanes_.end();) {
      if (lane->first.group != &group) {
        ++lane;
        continue;
      }
      for (auto& work : lane->second) {
        if (work->started())
          work->keep_buffers_forever();
        done.push_back({work, failure(*work, reason)});
      }
      pending_ -= lane->second.size();
      lane = lanes_.erase(lane);
    }
  }
  settle(done);
}

std::vector<WorkPtr> Engine::pending() {
  std::vector<WorkPtr> out;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [lane, queue] : lanes_)
    out.insert(out.end(), queue.begin(), queue.end());
  return out;
}

void Engine::close(Millis patience) {
  const auto until = Clock::now() + patience;
  while (unsettled_ > 0 && Clock::now() < until)
    std::this_thread::sleep_for(Millis(1));
  closed_ = true;
  std::lock_guard<std::mutex> wait_for_observers(observers_);
}

bool Engine::open(std::unique_lock<std::mutex>& lock) {
  lock = std::unique_lock<std::mutex>(observers_);
  return !closed_;
}

} // namespace orch_ccl
