#include "mailbox.h"

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

#include "group.h"
#include "tensors.h"
#include "wire.h"

namespace orch_ccl {
namespace {

bool comes_from(const Receive& receive, int rank) {
  return receive.source == kAnyPeer || receive.source == rank;
}

bool all_done(Events& events) {
  while (!events.empty() && events.back().test(false))
    events.pop_back();
  return events.empty();
}

// Whether it fits. If not, arrived() will tell.
bool fits(const Group& group, Receive& receive, int rank, size_t sent) {
  const size_t room = bytes_of(receive.data);
  if (sent != room)
    receive.trouble = group.name_ranks({rank}) + " sent " + std::to_string(sent) +
        " bytes, and this recv waits for " + std::to_string(room);
  return sent == room;
}

} // namespace

void Mailbox::post(const std::shared_ptr<Receive>& receive) {
  waiting_.push_back(receive);
}

bool Mailbox::arrived(const Group& group, const Receive& receive) {
  for (int rank = 0; receive.from < 0 && rank < group.size(); ++rank)
    if (rank != group.rank() && comes_from(receive, rank))
      read_from(group, rank);
  if (!receive.trouble.empty())
    throw Disagreement(receive.trouble);
  return receive.from >= 0;
}

bool Mailbox::idle() const {
  return std::all_of(senders_.begin(), senders_.end(), [](const Sender& sender) {
    return sender.reading == Sender::nothing;
  });
}

bool Mailbox::wanted(int rank) const {
  return std::any_of(
      waiting_.begin(), waiting_.end(), [rank](const auto& receive) { return comes_from(*receive, rank); });
}

std::shared_ptr<Receive> Mailbox::take_receiver(int rank, int64_t tag) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [=](const auto& receive) {
    return comes_from(*receive, rank) && receive->tag == tag;
  });
  if (found == waiting_.end())
    return nullptr;
  auto receive = *found;
  waiting_.erase(found);
  return receive;
}

// What was kept until now, and is wanted by now.
void Mailbox::match_kept(const Group& group, int rank) {
  auto& kept = senders_[rank].kept;
  for (auto message = kept.begin(); message != kept.end();) {
    const auto receive = take_receiver(rank, message->tag);
    if (!receive) {
      ++message;
      continue;
    }
    if (fits(group, *receive, rank, bytes_of(message->data))) {
      std::memcpy(receive->data.data_ptr(), message->data.data_ptr(), bytes_of(message->data));
      receive->from = rank;
    }
    message = kept.erase(message);
  }
}

void Mailbox::read_from(const Group& group, int rank) {
  auto& sender = senders_[rank];
  match_kept(group, rank);
  while (sender.reading != Sender::nothing || wanted(rank)) {
    if (sender.reading == Sender::nothing) {
      wire::receive(group, sender.head.get(), sizeof(Envelope), rank, sender.events);
      sender.reading = Sender::envelope;
    }
    if (!all_done(sender.events))
      return;
    if (sender.reading == Sender::envelope)
      open(group, rank);
    if (read_more(group, rank))
      return;
    hand_over(rank);
    match_kept(group, rank);
  }
}

// The envelope is there: where does its data belong?
void Mailbox::open(const Group& group, int rank) {
  auto& sender = senders_[rank];
  const auto bytes = sender.head->bytes;
  sender.reading = Sender::data;
  sender.read = 0;
  sender.receiver = take_receiver(rank, sender.head->tag);
  if (sender.receiver && !fits(group, *sender.receiver, rank, bytes))
    sender.receiver = nullptr;
  sender.arriving = sender.receiver ? sender.receiver->data : at::empty({static_cast<int64_t>(bytes)}, at::kByte);
}

// False if there was nothing left to read.
bool Mailbox::read_more(const Group& group, int rank) {
  auto& sender = senders_[rank];
  while (sender.read < sender.head->bytes) {
    const size_t some = std::min(sender.head->bytes - sender.read, wire::most_elements());
    auto* to = static_cast<char*>(sender.arriving.data_ptr()) + sender.read;
    wire::receive(group, to, some, rank, sender.events);
    sender.read += some;
    if (!all_done(sender.events))
      return true;
  }
  return false;
}

void Mailbox::hand_over(int rank) {
  auto& sender = senders_[rank];
  if (sender.receiver)
    sender.receiver->from = rank;
  else
    sender.kept.push_back({sender.head->tag, sender.arriving});
  sender.receiver = nullptr;
  sender.arriving = at::Tensor();
  sender.reading = Sender::nothing;
}

} // namespace orch_ccl
