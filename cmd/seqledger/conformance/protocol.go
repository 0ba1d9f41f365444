package conformance

// command is a line on the client's standard input.
type command struct {
	Do string `json:"do"` // open, submit, acknowledge, resume or close

	// Of open.
	Server       string `json:"server,omitempty"` // URL
	Organization string `json:"organization,omitempty"`
	Vault        string `json:"vault,omitempty"`
	ClientID     string `json:"clientId,omitempty"`
	Journal      string `json:"journal,omitempty"`      // path of a file that the client may make
	JournalBytes int64  `json:"journalBytes,omitempty"` // bound of the journal; 0 is the client's own

	// Of submit and acknowledge: the application's name for the write, which is its text, too.
	ID string `json:"id,omitempty"`
	// Of submit. Set is the key of an entity that the text is set to; empty appends the text. If is
	// the entity's condition: absent or present. Bytes is the length to which the text is filled up
	// with spaces.
	Set   string `json:"set,omitempty"`
	If    string `json:"if,omitempty"`
	Bytes int    `json:"bytes,omitempty"`
}

// event is a line on the client's standard output.
type event struct {
	Event string `json:"event"` // opened, outcome, resumed or ended

	// Of opened: the writes that the journal held and whose outcomes follow.
	Recovered []string `json:"recovered,omitempty"`

	// Of outcome.
	ID       string `json:"id,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	Sequence uint64 `json:"sequence,omitempty,string"`
	TxID     string `json:"txId,omitempty"` // empty if the receipt is no longer kept
	// Code is, of outcome and ended, the name of the ledger's refusal without WRITE_ERROR_CODE_, or
	// empty.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"` // for people

	// Of ended: the writes that the client no longer settles.
	Unsettled []string `json:"unsettled,omitempty"`
}

// The outcomes of a write.
const (
	committed   = "committed"
	notExecuted = "not_executed" // and never will be
	unknown     = "unknown"      // the client no longer settles it
	known       = "known"        // the client's journal has the id: no new write was made
)
