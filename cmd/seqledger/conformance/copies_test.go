package conformance

import (
	"errors"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/op"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	keyA = "0190b2d6-0000-7000-8000-00000000000a"
	keyB = "0190B2D6-0000-7000-8000-00000000000B"
)

// copyOf returns a copy of a write that appends a text.
func copyOf(sequence uint64, key, text string) *seqledgerv1.WriteRequest {
	return &seqledgerv1.WriteRequest{
		Sequence: sequence, IdempotencyKey: key, Operations: []*seqledgerv1.Operation{op.Append([]byte(text))},
	}
}

// TestCopies covers what can be wrong with the copies that a client sends.
func TestCopies(t *testing.T) {
	t.Parallel()
	type writes = []*seqledgerv1.WriteRequest
	for name, test := range map[string]struct {
		sent  writes
		wrong string
	}{
		"the same again":         {writes{copyOf(1, keyA, "a"), copyOf(1, keyA, "a")}, ""},
		"one behind the other":   {writes{copyOf(1, keyA, "a"), copyOf(2, keyB, "b")}, ""},
		"filled up":              {writes{copyOf(1, keyA, "a"), copyOf(1, keyA, "a  ")}, ""},
		"renumbered":             {writes{copyOf(2, keyA, "a"), copyOf(1, keyA, "a")}, ""},
		"a number that was free": {writes{copyOf(1, keyA, "a"), copyOf(1, keyB, "b")}, ""},
		"no key":                 {writes{copyOf(1, "", "a")}, `a is sent under number 1 with the key ""`},
		"no UUID":                {writes{copyOf(1, keyA+"0", "a")}, "which is no UUID"},
		"another key":            {writes{copyOf(1, keyA, "a"), copyOf(1, keyB, "a")}, "was sent with " + keyA},
		"another write":          {writes{copyOf(1, keyA, "a"), copyOf(2, keyA, "b")}, "with which a was sent"},
	} {
		c := newCopies()
		for _, w := range test.sent {
			c.note(&message{Procedure: "Write", Writes: writes{w}})
		}
		err := c.wrong()
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: want %q, got %v", name, test.wrong, err)
		}
	}
}

// TestCopiesThatCannotBeRead checks that a client whose messages cannot be inspected does not pass for one that sends
// keys.
func TestCopiesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCopies()
	if err := c.wrong(); err != nil {
		t.Errorf("nothing was sent: %v", err)
	}
	c.note(&message{Procedure: "Write", Err: errors.New("no gzip")})
	c.note(&message{Procedure: "WriteStream", Err: errors.New("no JSON")})
	if err := c.wrong(); err == nil || !strings.Contains(err.Error(), "a message of Write cannot be read") {
		t.Error(err)
	}
	c = newCopies()
	c.note(&message{Procedure: "GetEntity"})
	if err := c.wrong(); err != nil {
		t.Errorf("a call without writes: %v", err)
	}
}
