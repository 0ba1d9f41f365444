package writer

import "github.com/seqledger/seqledger/client"

// InFlight returns how many writes of w are sent, or bound to be sent, and not
// answered. Tests use it to know that a burst travels as a whole.
func InFlight(w *Writer) int {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return w.inflight
}

// Closing reports whether w refuses new writes.
func Closing(w *Writer) bool {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return w.closing
}

// Waiting returns how many calls of w wait for room.
func Waiting(w *Writer) int {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	return w.waiting.Len()
}

// JournalFile is what a Writer needs of a journal.
type JournalFile = journalFile

// WithJournal returns options with a journal that need not be a File.
func WithJournal(o Options, j JournalFile) Options {
	o.journal = j
	return o
}

// Syncers returns how many journals c has a goroutine for.
func Syncers(c *client.Client) int {
	h, err := muxOf(c.Core())
	if err != nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.syncers)
}
