package client

// InFlight returns how many writes of w are sent, or bound to be sent, and not
// answered. Tests use it to know that a burst travels as a whole.
func InFlight(w *Writer) int {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.inflight
}
