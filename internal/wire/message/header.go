package message

// LeaderHeader is the header in which a node that has passed a call on tells the caller where the leader is, host and
// port, so that it can go there itself.
const LeaderHeader = "Seqledger-Leader"

// LedgerHeader is the header in which a client with several servers says of which ledger it takes them all to be. A
// server of another one refuses the call, whatever it is, and has its own id in the answer. AnyLedger asks for the id,
// when the client does not know it yet.
const (
	LedgerHeader = "Seqledger-Ledger"
	AnyLedger    = "any"
)

// ReadHeader with ReadStale asks a server to answer a read from what it has, without asking the other nodes of its
// cluster. The answer has the ledger index up to which it shows everything in IndexHeader.
const (
	ReadHeader  = "Seqledger-Read"
	ReadStale   = "stale"
	IndexHeader = "Seqledger-Index"
)
