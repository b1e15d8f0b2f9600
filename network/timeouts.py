"""How long anybody waits for anything: every bound in one place, so that they fit each other.

What a run's manifest says (how long rounds are open, and the grace after them) and what a program measures comes first; these are the
bounds around it. Each is longer than what it waits for may take by its own bounds; a test holds them to that. Seconds.
"""

# A node: its daemon, others, and the DHT.
DAEMON_S = 60.0  # until the daemon listens, and has asked the router for its port
CONNECT_S = 15.0  # to one address
OTHERS_S = 2.0  # once one of several addresses answered: for the others
WHERE_ITSELF_S = 2.0  # until a node says at which addresses it listens
WHERE_S = 3.0  # until another one says that of it, which may have to ask it first
ENTER_DHT_S = 5.0  # for a look at the nodes nearest to the own id; others are met later as well
GOODBYE_S = 5.0  # to leave the DHT
DHT_S = 60.0  # a search: hivemind asks dozens of nodes, a few at a time, and waits 5 s for each
STREAM_S = 60.0  # for the caller of a large call to be behind the slowest pace at which it may send, or take the answer
STREAM_IDLE_S = (2.0, 10.0)  # the same where others want its place: those that have sent much lately, and everybody

# One call of another node, by what it asks for; it may have to be connected to first.
CALL_S = 20.0  # a short answer from memory: a manifest, a contribution
DIAL_BACK_S = 5.0  # a connection to a caller's own port, to see whether others reach it
REACH_S = 15.0  # the answer of who was asked to dial back
OFFER_S = 10.0  # a latency table: its offer, and again the table; who is slower is done without
PING_S = 2.0  # measuring how far a node is; whoever takes longer is far
OPERATOR_LOOK_S = 2.0  # a call to one of several operators waits half as long before it looks whether that is there, then so long each time
OPERATOR_AWAY_S = 3.0  # an operator that says nothing for so long is done without: another one is asked
OPERATOR_BUSY_S = 30.0  # the same while a body is on its way there, over a line that it may fill, if no other one answers either
PUSH_S = 5.0  # telling a neighbour of a commit; it will learn of it anyway
FEED_HELD_S = 5.0  # the log holds a caller who waits for a commit so long beyond the round's time and grace ...
ANSWER_S = 10.0  # ... and the caller waits so much longer than that before the log counts as away
WORD_S = 2.0  # after a commit a member waits so long for its founder's word, which travels as the commit does
LAST_ASKED_S = 60.0  # all those together who did not bring what an audit needs of them, before an auditor says so
BROUGHT_S = (10.0, 60.0)  # and so long, beyond three rounds and at most, until audits could ask for what its work rests on and have it
LAST_ROUND_S = 5.0  # at its end a peer waits so long to see that a round has listed its last contribution

# Handing in. Between its deadline and its commit a round takes its grace, a sync and the arithmetic.
HEADER_S = 20.0
BODY_S = 120.0  # a group of a body, half a megabyte, four at a time: over a line of 0.3 Mbit/s; the last answer waits for the disk
HAND_IN_AGAIN_S = (0.2, 5.0)  # first and longest pause after a hand-in that came to nothing

# Getting what leads to a commit.
PIECE_S = 60.0  # a call for a piece
PIECE_AGAIN_S = (0.2, 5.0)  # first and longest rest of a source that has not got the piece, or is busy
AWAY_S = 1.0  # first rest of a source that does not answer
FETCH_S = 600.0  # all of it: one bound over all ways, sources and pieces
NEAR_GETS_S = 1.0  # for what a near neighbour is getting from afar
TURN_S = 2.0  # for others to give what the log has too; so long again each time that twice as many may ask the log
NEIGHBOURS_S = 1.0  # until neighbours are asked who did not say that they have it

# Looking for a log that is away.
LOG_AGAIN_S = (0.5, 5.0)  # first and longest pause
RUN_AGAIN_S = (1.0, 30.0)  # the same of a peer that starts, with a new node each time

# Being found: announcements in the DHT.
ANNOUNCE_S = (10.0, 300.0)  # shortest and longest pause: the larger the run, the longer
FIRST_LOOKS_S = 0.5  # the first pauses are twice this, and twice as long each time up to those
ANNOUNCED_S = 60.0  # an announcement counts so long at least

REACH_AGAIN_S = (30.0, 600.0)  # from one look at whether others reach this node to the next: where nobody could say, and else

# A log that may not be the newest.
HEARD_S = 10.0  # after its start, for those of its last table to say which head they hold: they look for it every LOG_AGAIN_S
HEADS_S = 30.0  # from one comparison of the log's heads with those of others to the next
ROLLED_BACK_S = 600.0  # a peer waits so long for the whole log after one showed less than it had signed

# This computer may sleep.
LOOK_AT_CLOCK_S = 2.0  # between two looks at the clock
ABSENT_S = 8.0  # so much more than that went by: nothing ran here

LOOK_AT_COMPUTER_S = 5.0  # between two looks at what a person's limits ask of this computer: its clock, power, use, heat

REVOKED_S = 10.0  # from one look at whose admission was taken back to the next

# In a cohort. Beside these its founder's timetable decides, which follows from the time that a round leaves.
LEAVE_S = 2.0  # to tell the others that this peer leaves
HELLO_S = 10.0  # a proof for a proof, from memory
LINK_S = 2.0  # until a direct link to a cohort peer stands, by one of its addresses; then the other end tries
LINK_AGAIN_S = 30.0  # from one attempt at a link to the next
LINK_CHUNK_S = 10.0  # a chunk of a vector waits so long for whoever takes it to know of it
NEAR_S = 1.0  # on top of what the other side takes by its own bounds, for the way and a busy machine

# Two sites with a view each.
VIEWS_EXCHANGE_S = 20.0  # for what the other one computes next; its one thread may be busy with a state first
VIEWS_MATCH_S = 2.0  # until both are at the same weights: they learn of a commit at about the same time
VIEWS_MICROBATCH_S = 120.0  # for a microbatch that the right site asks the left one for, which may be in the middle of one of its own
VIEWS_AGAIN_S = (0.5, 30.0)  # first and longest pause before the left site looks for the other one again

# Asking members how good architectures are.
EVALUATION_HELD_S = 5.0  # a member holds a question so long before it says that it is still at it
EVALUATION_CALL_S = 30.0  # a call with that
EVALUATION_POLL_S = 0.2  # at least until it is asked again
EVALUATION_AGAIN_S = 1.0  # the same for one that does not answer, or says: later
EVALUATION_SLOW_S = 30.0  # from then on another one may do the same beside it
EVALUATION_S = 1800.0  # for all of a question
EVALUATION_LOOK_S = 5.0  # between two looks at who is there, and what is slow
EVALUATORS_S = 60.0  # without anybody who measures, until it is given up


def feed_s(left_ms: int, grace_ms: int) -> float:
    """Return how long a caller waits for the answer of a log that waits for a commit, given what it knows of the round's time."""
    return left_ms / 1000 + grace_ms / 1000 + FEED_HELD_S + ANSWER_S
