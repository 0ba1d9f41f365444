package outbox

// step names a point in the work on a stream at which the ledger, the database and this process have different
// states, so that the others must recover when one of them fails.
type step string

// The steps, in the order of a stream's work. Those of a refusal come after "answered".
const (
	// The table says that the stream is this relay's; the ledger still takes writes of the relay before it.
	stepClaimed step = "claimed"
	// The table has the attempt under which a session will be opened.
	stepAttemptSaved step = "attempt saved"
	// The ledger has fenced the earlier sessions, and the table still has one of them.
	stepSessionOpened step = "session opened"
	stepSessionSaved  step = "session saved"
	// Rows before are settled, and rows have numbers, in a transaction that is not over.
	stepNumbering step = "numbering"
	// The same is durable, and nothing is sent.
	stepNumbered step = "numbered"
	stepSending  step = "sending"
	// The ledger has decided, and the table does not have the outcome.
	stepAnswered step = "answered"
	// The rows before a failed one are settled, in a transaction that is not over.
	stepSettling step = "settling"
	stepSettled  step = "settled"
	// A row was refused, and copies of it may be under way.
	stepRefusalSeen step = "refusal seen"
	// They are fenced.
	stepRefusalFenced step = "refusal fenced"
	// The row is refused, and later numbers are free, in a transaction that is not over.
	stepRefusing step = "refusing"
	stepRefused  step = "refused"
)

// steps are all of them.
var steps = []step{
	stepClaimed, stepAttemptSaved, stepSessionOpened, stepSessionSaved, stepNumbering, stepNumbered, stepSending,
	stepAnswered, stepSettling, stepSettled, stepRefusalSeen, stepRefusalFenced, stepRefusing, stepRefused,
}

func (s *stream) at(step step) { s.relay.at(s.name, step) }
