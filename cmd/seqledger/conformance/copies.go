package conformance

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// copies are the writes of the client under test that the proxy has seen. Each must have a key, and all copies of one
// write the same key. The books cannot check this, because the ledger also answers a write without a key.
type copies struct {
	mu sync.Mutex
	// keys maps a copy to its key, and texts a key to the text it was sent with.
	keys  map[copyName]string
	texts map[string]string
	// problem is the first thing that is wrong; unread is why a message could not be inspected.
	problem, unread error
}

// copyName identifies the copies of one write. The number alone is not enough: after a refusal it is free, and may be
// used for another text.
type copyName struct {
	sequence uint64
	text     string
}

func newCopies() *copies {
	return &copies{keys: make(map[copyName]string), texts: make(map[string]string)}
}

var uuidText = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// note inspects a message.
func (c *copies) note(m *faultproxy.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Err != nil && c.unread == nil {
		c.unread = fmt.Errorf("a message of %s cannot be read: %w", m.Procedure, m.Err)
	}
	for _, w := range m.Writes {
		if err := c.check(w); err != nil && c.problem == nil {
			c.problem = err
		}
	}
}

// check compares a copy with the earlier ones. The caller holds mu.
func (c *copies) check(w *seqledgerv1.WriteRequest) error {
	key := w.GetIdempotencyKey()
	text := textOf(w.GetOperations())
	if !uuidText.MatchString(key) {
		return fmt.Errorf("%s is sent under number %d with the key %q, which is no UUID", text, w.GetSequence(), key)
	}
	name := copyName{w.GetSequence(), text}
	if before, known := c.keys[name]; known && before != key {
		return fmt.Errorf("%s is sent under number %d with the key %s, and was sent with %s",
			text, w.GetSequence(), key, before)
	}
	if before, known := c.texts[key]; known && before != text {
		return fmt.Errorf("%s is sent with the key %s, with which %s was sent", text, key, before)
	}
	c.keys[name], c.texts[key] = key, text
	return nil
}

// wrong returns the first problem. It is a problem if none of the client's messages could be read.
func (c *copies) wrong() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problem == nil && len(c.keys) == 0 {
		return c.unread
	}
	return c.problem
}

// textOf returns the text with which a write of the client under test was submitted.
func textOf(operations []*seqledgerv1.Operation) string {
	text := ""
	for _, o := range operations {
		text += string(o.GetAppend().GetPayload()) + string(o.GetSetEntity().GetValue())
	}
	return strings.TrimRight(text, " ")
}
