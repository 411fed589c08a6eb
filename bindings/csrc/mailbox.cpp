#include "mailbox.h"

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

#include "group.h"
#include "tensors.h"
#include "wire.h"

namespace orch_ccl {
namespace {

bool accepts(const Receive& receive, int rank) {
  return receive.source == kAnyPeer || receive.source == rank;
}

bool all_completed(Events& events) {
  while (!events.empty() && events.back().test(/*may_spin=*/false))
    events.pop_back();
  return events.empty();
}

// Returns whether the message has the expected size. If not, test_receive() will throw.
bool fits(const Group& group, Receive& receive, int rank, size_t sent) {
  const size_t expected = bytes_of(receive.data);
  if (sent != expected)
    receive.error = group.name_ranks({rank}) + " sent " + std::to_string(sent) +
        " bytes, but this recv expects " + std::to_string(expected);
  return sent == expected;
}

} // namespace

void Mailbox::post(const std::shared_ptr<Receive>& receive) {
  posted_.push_back(receive);
}

bool Mailbox::test_receive(const Group& group, const Receive& receive) {
  for (int rank = 0; receive.sender < 0 && rank < group.size(); ++rank)
    if (rank != group.rank() && accepts(receive, rank))
      read_from(group, rank);
  if (!receive.error.empty())
    throw SizeMismatch(receive.error);
  return receive.sender >= 0;
}

bool Mailbox::idle() const {
  return std::all_of(senders_.begin(), senders_.end(), [](const Sender& sender) {
    return sender.reading == Sender::nothing;
  });
}

bool Mailbox::has_posted_receive(int rank) const {
  return std::any_of(
      posted_.begin(), posted_.end(), [rank](const auto& receive) { return accepts(*receive, rank); });
}

std::shared_ptr<Receive> Mailbox::take_matching_receive(int rank, int64_t tag) {
  const auto match = std::find_if(posted_.begin(), posted_.end(), [=](const auto& receive) {
    return accepts(*receive, rank) && receive->tag == tag;
  });
  if (match == posted_.end())
    return nullptr;
  auto receive = *match;
  posted_.erase(match);
  return receive;
}

// Passes stored messages to receives that were posted after them.
void Mailbox::match_unexpected(const Group& group, int rank) {
  auto& unexpected = senders_[rank].unexpected;
  for (auto message = unexpected.begin(); message != unexpected.end();) {
    const auto receive = take_matching_receive(rank, message->tag);
    if (!receive) {
      ++message;
      continue;
    }
    if (fits(group, *receive, rank, bytes_of(message->data))) {
      std::memcpy(receive->data.data_ptr(), message->data.data_ptr(), bytes_of(message->data));
      receive->sender = rank;
    }
    message = unexpected.erase(message);
  }
}

void Mailbox::read_from(const Group& group, int rank) {
  auto& sender = senders_[rank];
  match_unexpected(group, rank);
  while (sender.reading != Sender::nothing || has_posted_receive(rank)) {
    if (sender.reading == Sender::nothing) {
      wire::receive(group, sender.header.get(), sizeof(Envelope), rank, sender.events);
      sender.reading = Sender::envelope;
    }
    if (!all_completed(sender.events))
      return;
    if (sender.reading == Sender::envelope)
      start_data(group, rank);
    if (read_data(group, rank))
      return;
    deliver(rank);
    match_unexpected(group, rank);
  }
}

// The envelope has arrived: chooses the buffer for its data.
void Mailbox::start_data(const Group& group, int rank) {
  auto& sender = senders_[rank];
  const auto bytes = sender.header->bytes;
  sender.reading = Sender::data;
  sender.read = 0;
  sender.receiver = take_matching_receive(rank, sender.header->tag);
  if (sender.receiver && !fits(group, *sender.receiver, rank, bytes))
    sender.receiver = nullptr;
  sender.buffer = sender.receiver ? sender.receiver->data : at::empty({static_cast<int64_t>(bytes)}, at::kByte);
}

// Returns true while data is still to come.
bool Mailbox::read_data(const Group& group, int rank) {
  auto& sender = senders_[rank];
  while (sender.read < sender.header->bytes) {
    const size_t length = std::min(sender.header->bytes - sender.read, wire::max_elements_per_call());
    auto* target = static_cast<char*>(sender.buffer.data_ptr()) + sender.read;
    wire::receive(group, target, length, rank, sender.events);
    sender.read += length;
    if (!all_completed(sender.events))
      return true;
  }
  return false;
}

void Mailbox::deliver(int rank) {
  auto& sender = senders_[rank];
  if (sender.receiver)
    sender.receiver->sender = rank;
  else
    sender.unexpected.push_back({sender.header->tag, sender.buffer});
  sender.receiver = nullptr;
  sender.buffer = at::Tensor();
  sender.reading = Sender::nothing;
}

} // namespace orch_ccl
