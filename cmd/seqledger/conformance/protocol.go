package conformance

// command is a line on the client's standard input.
type command struct {
	Do string `json:"do"` // open, submit, acknowledge, resume or close

	// For open.
	Server       string `json:"server,omitempty"` // URL
	Organization string `json:"organization,omitempty"`
	Vault        string `json:"vault,omitempty"`
	ClientID     string `json:"clientId,omitempty"`
	Journal      string `json:"journal,omitempty"`      // path of a file that the client may create
	JournalBytes int64  `json:"journalBytes,omitempty"` // limit of the journal; 0 means the client's default

	// For submit and acknowledge: the application's name for the write, which is also its text.
	ID string `json:"id,omitempty"`
	// For submit. Set is the key of an entity whose value becomes the text; if empty, the text is appended. If is the
	// condition on the entity: absent or present. Bytes is the length to which the text is padded with spaces.
	Set   string `json:"set,omitempty"`
	If    string `json:"if,omitempty"`
	Bytes int    `json:"bytes,omitempty"`
}

// event is a line on the client's standard output.
type event struct {
	Event string `json:"event"` // opened, outcome, resumed or ended

	// For opened: the writes in the journal whose outcomes follow.
	Recovered []string `json:"recovered,omitempty"`

	// For outcome.
	ID       string `json:"id,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	Sequence uint64 `json:"sequence,omitempty,string"`
	TxID     string `json:"txId,omitempty"` // empty if the receipt is no longer kept
	// For outcome and ended: Code is the name of the ledger's refusal without WRITE_ERROR_CODE_, or empty.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"` // for people

	// For ended: the writes that the client no longer settles.
	Unsettled []string `json:"unsettled,omitempty"`
}

// The outcomes of a write.
const (
	committed   = "committed"
	notExecuted = "not_executed" // and never will be
	unknown     = "unknown"      // the client no longer settles it
	known       = "known"        // the client's journal has the id: no new write was made
)
