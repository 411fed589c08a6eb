#include "store_kvs.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace orch_ccl {

namespace {

// oneCCL reads this key once before anybody can have set it, and takes an empty value for 0.
const std::string kOptional = "LOCAL_KVS_ID";
// In oneCCL's barriers each rank sets a key to its number of barriers, which grows by one, and reads those of all
// ranks over and over until none has a smaller number.
const std::string kBarrier = "CCL_BARRIER";

bool starts_with(const std::string& name, const std::string& prefix) {
  return name.compare(0, prefix.size(), prefix) == 0;
}

// The same for all ranks: "CCL_BARRIER" and "CCL_BARRIER_FULL" are two barriers.
std::string barrier_of(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

std::string marker(const std::string& name, const std::string& value) {
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
  const auto left = std::chrono::duration_cast<Millis>(deadline_ - std::chrono::steady_clock::now());
  try {
    store_->wait({key}, std::max(left, Millis(1)));
  } catch (const std::exception&) {
    if (std::chrono::steady_clock::now() < deadline_)
      throw;
    throw std::runtime_error("ccl: another rank did not finish setting up the communicator in time");
  }
}

ccl::vector_class<char> StoreKvs::get(const ccl::string_class& key) {
  const std::string name(key.c_str());
  if (starts_with(name, kOptional) && !store_->check({name}))
    return {};
  const auto reached = barriers_.find(barrier_of(name));
  wait_for(reached == barriers_.end() ? name : marker(name, reached->second));
  const auto bytes = store_->get(name);
  return {bytes.begin(), bytes.end()};
}

void StoreKvs::set(const ccl::string_class& key, const ccl::vector_class<char>& data) {
  const std::string name(key.c_str());
  store_->set(name, std::vector<uint8_t>(data.begin(), data.end()));
  if (!starts_with(name, kBarrier))
    return;
  const std::string value(data.begin(), data.end());
  store_->set(marker(name, value), std::vector<uint8_t>());
  barriers_[barrier_of(name)] = value;
}

int StoreKvs::get_id() {
  return id_;
}

} // namespace orch_ccl
