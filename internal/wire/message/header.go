package message

// LeaderHeader is the header in which a node that has passed a call on tells the caller where the leader is, host and
// port, so that it can go there itself.
const LeaderHeader = "Seqledger-Leader"
