package client

// InFlight returns how many writes of w are sent, or bound to be sent, and not
// answered. Tests use it to know that a burst travels as a whole.
func InFlight(w *Writer) int {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.inflight
}

// Syncers returns how many journals c has a goroutine for.
func Syncers(c *Client) int {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	return len(c.hub.syncers)
}

// CanonicalTransaction is the encoding that a leaf is the hash of.
var CanonicalTransaction = canonicalTransaction
