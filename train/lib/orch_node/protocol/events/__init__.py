"""The events of a run: one line of JSON each, from its ranks or (rank -1) from the supervisor.

    {"event": "joined", "rank": 3, "time": 1767268800.0, "node": "node1", ...}

Ranks may be of another version: a missing field has its default, and an unknown field is dropped.
Events that a script defines itself are `Other`.
"""

from orch_node.protocol.events.kinds import KINDS as KINDS
from orch_node.protocol.events.kinds import PROGRESS_EVENTS as PROGRESS_EVENTS
from orch_node.protocol.events.kinds import SCRIPT_EVENTS as SCRIPT_EVENTS
from orch_node.protocol.events.lines import EVENT_PREFIX as EVENT_PREFIX
from orch_node.protocol.events.lines import HEADER as HEADER
from orch_node.protocol.events.lines import LAST_TIME as LAST_TIME
from orch_node.protocol.events.lines import UnreadableEvents as UnreadableEvents
from orch_node.protocol.events.lines import event_fields as event_fields
from orch_node.protocol.events.lines import event_header as event_header
from orch_node.protocol.events.lines import event_name as event_name
from orch_node.protocol.events.lines import parse as parse
from orch_node.protocol.events.lines import parse_from_rank as parse_from_rank
from orch_node.protocol.events.lines import parse_line as parse_line
from orch_node.protocol.events.lines import read as read
from orch_node.protocol.events.lines import record as record
from orch_node.protocol.events.lines import render as render
from orch_node.protocol.events.rank_events import NAN_LOSS as NAN_LOSS
from orch_node.protocol.events.rank_events import NO_RANK as NO_RANK
from orch_node.protocol.events.rank_events import STEPS_PER_SECOND as STEPS_PER_SECOND
from orch_node.protocol.events.rank_events import Decided as Decided
from orch_node.protocol.events.rank_events import Event as Event
from orch_node.protocol.events.rank_events import Exited as Exited
from orch_node.protocol.events.rank_events import FirstStep as FirstStep
from orch_node.protocol.events.rank_events import Heartbeat as Heartbeat
from orch_node.protocol.events.rank_events import Joined as Joined
from orch_node.protocol.events.rank_events import Other as Other
from orch_node.protocol.events.rank_events import Preempted as Preempted
from orch_node.protocol.events.rank_events import Progress as Progress
from orch_node.protocol.events.rank_events import Raised as Raised
from orch_node.protocol.events.rank_events import Result as Result
from orch_node.protocol.events.rank_events import ScriptEnded as ScriptEnded
from orch_node.protocol.events.rank_events import Started as Started
from orch_node.protocol.events.rank_events import Unanswered as Unanswered
from orch_node.protocol.events.rank_events import UnreadableEvent as UnreadableEvent
from orch_node.protocol.events.rank_events import Warned as Warned
from orch_node.protocol.events.run_events import Ended as Ended
from orch_node.protocol.events.run_events import Failed as Failed
from orch_node.protocol.events.run_events import Finished as Finished
from orch_node.protocol.events.run_events import Launched as Launched
from orch_node.protocol.events.run_events import NodeNews as NodeNews
from orch_node.protocol.events.run_events import NodesLost as NodesLost
from orch_node.protocol.events.run_events import Refused as Refused
from orch_node.protocol.events.run_events import Restarting as Restarting
from orch_node.protocol.events.run_events import Stalled as Stalled
from orch_node.protocol.events.run_events import Stopping as Stopping
from orch_node.protocol.events.run_events import Waiting as Waiting
