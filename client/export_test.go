package client

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
func WithJournal(o WriterOptions, j JournalFile) WriterOptions {
	o.journal = j
	return o
}

// Syncers returns how many journals c has a goroutine for.
func Syncers(c *Client) int {
	c.mux.mu.Lock()
	defer c.mux.mu.Unlock()
	return len(c.mux.syncers)
}
