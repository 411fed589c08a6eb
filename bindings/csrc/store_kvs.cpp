#include "store_kvs.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace orch_ccl {

namespace {

// oneCCL reads this key once before any rank has set it, and treats an empty value as 0.
const std::string kOptionalKey = "LOCAL_KVS_ID";
// In a barrier of oneCCL each rank increments the number under its key and polls the keys of all ranks until none of
// them has a smaller number.
const std::string kBarrierPrefix = "CCL_BARRIER";

bool starts_with(const std::string& name, const std::string& prefix) {
  return name.compare(0, prefix.size(), prefix) == 0;
}

// Returns the key without its rank. "CCL_BARRIER" and "CCL_BARRIER_FULL" are different barriers.
std::string barrier_of(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

std::string marker_key(const std::string& name, const std::string& value) {
  return name + "@" + value;
}

} // namespace

StoreKvs::StoreKvs(c10::intrusive_ptr<c10d::Store> store, std::chrono::steady_clock::time_point deadline)
    : store_(std::move(store)), deadline_(deadline) {
  static std::atomic<int> next{0};
  id_ = next++;
}

void StoreKvs::wait_for(const std::string& key) {
  using Millis = std::chrono::milliseconds;
  const auto remaining = std::chrono::duration_cast<Millis>(deadline_ - std::chrono::steady_clock::now());
  try {
    store_->wait({key}, std::max(remaining, Millis(1)));
  } catch (const std::exception&) {
    if (std::chrono::steady_clock::now() < deadline_)
      throw;
    throw std::runtime_error("ccl: another rank did not finish setting up the communicator in time");
  }
}

ccl::vector_class<char> StoreKvs::get(const ccl::string_class& key) {
  const std::string name(key.c_str());
  if (starts_with(name, kOptionalKey) && !store_->check({name}))
    return {};
  const auto last_barrier = barriers_.find(barrier_of(name));
  wait_for(last_barrier == barriers_.end() ? name : marker_key(name, last_barrier->second));
  const auto bytes = store_->get(name);
  return {bytes.begin(), bytes.end()};
}

void StoreKvs::set(const ccl::string_class& key, const ccl::vector_class<char>& data) {
  const std::string name(key.c_str());
  store_->set(name, std::vector<uint8_t>(data.begin(), data.end()));
  if (!starts_with(name, kBarrierPrefix))
    return;
  const std::string value(data.begin(), data.end());
  store_->set(marker_key(name, value), std::vector<uint8_t>());
  barriers_[barrier_of(name)] = value;
}

int StoreKvs::get_id() {
  return id_;
}

} // namespace orch_ccl
