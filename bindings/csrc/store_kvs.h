#pragma once

#include <chrono>
#include <map>
#include <string>

#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace orch_ccl {

// Lets oneCCL exchange addresses through torch's Store. oneCCL's default is a socket server that has to guess a network
// interface (CCL_KVS_IFACE). The Store already connects all ranks and needs no extra port. oneCCL polls for values;
// this class waits in the store instead, so that a large group does not flood it. Used only by the thread that creates
// the communicator.
class StoreKvs final : public ccl::kvs_interface {
 public:
  StoreKvs(c10::intrusive_ptr<c10d::Store> store, std::chrono::steady_clock::time_point deadline);

  ccl::vector_class<char> get(const ccl::string_class& key) override;
  void set(const ccl::string_class& key, const ccl::vector_class<char>& data) override;
  int get_id() override;

 private:
  void wait_for(const std::string& key);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::steady_clock::time_point deadline_;
  int id_;
  std::map<std::string, std::string> barriers_; // for each barrier, the last value that this rank has set
};

} // namespace orch_ccl
