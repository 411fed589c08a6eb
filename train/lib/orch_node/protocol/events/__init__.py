"""The events of a run: a line of JSON each, from its ranks or, of rank -1, from what watches them.

    {"event": "joined", "rank": 3, "time": 1767268800.0, "node": "node1", ...}

A field that is not there has its default, one that is not known is dropped: ranks may be of another
version. A script may report kinds of its own, which are `Other`.
"""

from orch_node.protocol.events.kinds import KINDS as KINDS
from orch_node.protocol.events.kinds import OF_SCRIPTS as OF_SCRIPTS
from orch_node.protocol.events.kinds import SIGNS as SIGNS
from orch_node.protocol.events.lines import HEADER as HEADER
from orch_node.protocol.events.lines import LAST_TIME as LAST_TIME
from orch_node.protocol.events.lines import body as body
from orch_node.protocol.events.lines import head as head
from orch_node.protocol.events.lines import parse as parse
from orch_node.protocol.events.lines import parse_of_rank as parse_of_rank
from orch_node.protocol.events.lines import read as read
from orch_node.protocol.events.lines import record as record
from orch_node.protocol.events.lines import render as render
from orch_node.protocol.events.lines import understood as understood
from orch_node.protocol.events.of_ranks import NO_RANK as NO_RANK
from orch_node.protocol.events.of_ranks import STEPS_PER_SECOND as STEPS_PER_SECOND
from orch_node.protocol.events.of_ranks import Decided as Decided
from orch_node.protocol.events.of_ranks import Event as Event
from orch_node.protocol.events.of_ranks import Exited as Exited
from orch_node.protocol.events.of_ranks import FirstStep as FirstStep
from orch_node.protocol.events.of_ranks import Heartbeat as Heartbeat
from orch_node.protocol.events.of_ranks import Joined as Joined
from orch_node.protocol.events.of_ranks import Other as Other
from orch_node.protocol.events.of_ranks import Preempted as Preempted
from orch_node.protocol.events.of_ranks import Progress as Progress
from orch_node.protocol.events.of_ranks import Raised as Raised
from orch_node.protocol.events.of_ranks import Result as Result
from orch_node.protocol.events.of_ranks import ScriptEnded as ScriptEnded
from orch_node.protocol.events.of_ranks import Started as Started
from orch_node.protocol.events.of_ranks import Unanswered as Unanswered
from orch_node.protocol.events.of_ranks import UnreadableEvent as UnreadableEvent
from orch_node.protocol.events.of_ranks import Warned as Warned
from orch_node.protocol.events.of_run import Ended as Ended
from orch_node.protocol.events.of_run import Failed as Failed
from orch_node.protocol.events.of_run import Finished as Finished
from orch_node.protocol.events.of_run import Launched as Launched
from orch_node.protocol.events.of_run import NodeNews as NodeNews
from orch_node.protocol.events.of_run import NodesLost as NodesLost
from orch_node.protocol.events.of_run import OutcomeReported as OutcomeReported
from orch_node.protocol.events.of_run import Refused as Refused
from orch_node.protocol.events.of_run import Restarting as Restarting
from orch_node.protocol.events.of_run import Stalled as Stalled
from orch_node.protocol.events.of_run import Stopping as Stopping
from orch_node.protocol.events.of_run import Waiting as Waiting
from orch_node.protocol.events.tally import UnreadableEvents as UnreadableEvents
