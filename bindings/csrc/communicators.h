#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace orch_ccl {

// Communicators live as long as the process. Freeing one is a collective operation in MPI (it waits for ranks that may
// be dead), and freeing the last one finalizes MPI, after which no group can be created. Therefore a destroyed group
// returns its communicator to this pool, and the next group of the same processes takes it: calling init and destroy in
// a loop costs neither time nor MPI's context ids.
//
// All functions are thread-safe. `members` identifies the processes of a group, `id` the communicator on all of them.
void return_communicator(const std::string& members, const std::string& id, std::shared_ptr<ccl::communicator> comm);
std::string find_returned_communicator(const std::string& members); // its id, or "" if there is none
std::shared_ptr<ccl::communicator> take_communicator(const std::string& members, const std::string& id);

// Creates a communicator together with all other ranks of the group. Called by the thread that creates the group.
// Throws DistBackendError if it is not complete by the deadline. `group` is the group's description for messages.
std::shared_ptr<ccl::communicator> create_communicator(
    int rank,
    int size,
    c10::intrusive_ptr<c10d::Store> store,
    std::chrono::steady_clock::time_point deadline,
    const std::string& group);

// Returns whether oneCCL has started in this process, that is, whether there is something to finalize.
bool transport_started();

} // namespace orch_ccl
