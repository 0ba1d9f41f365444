package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// executable returns what a terminal would act upon rather than show.
func executable(output string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return -1
		}
		return r
	}, output)
}

// FuzzShow: whatever a server answers, people see text: no panic, and nothing
// that a terminal executes.
func FuzzShow(f *testing.F) {
	for i, m := range []proto.Message{
		&seqledgerv1.Receipt{TxId: "x\x1b[2J", Actor: "a\u202eb",
			Results: []*seqledgerv1.OperationResult{{Version: 3}}, Proof: &seqledgerv1.MerkleProof{}},
		&seqledgerv1.Transaction{Scope: &seqledgerv1.Scope{Organization: "a\n"},
			Operations: []*seqledgerv1.Operation{{}}},
		&seqledgerv1.Block{Transactions: []*seqledgerv1.Transaction{{IdempotencyKey: "\x07"}, nil}},
		&seqledgerv1.ClientState{LastRequestHash: "\t\r", Receipts: []*seqledgerv1.Receipt{nil}},
		&seqledgerv1.Config{},
		&seqledgerv1.WriteError{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER,
			Message: "a\x1b]0;b\x07\nc", LeaderAddress: "\x1b"},
	} {
		data := must.Get(proto.Marshal(m))(f)
		f.Add(uint8(i), data)
	}
	shows := []func(*table, []byte) error{
		shown(new(seqledgerv1.Receipt), showReceipt), shown(new(seqledgerv1.Transaction), showTransaction),
		shown(new(seqledgerv1.Block), showBlock), shown(new(seqledgerv1.ClientState), showClientState),
		shown(new(seqledgerv1.Config), showConfig),
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		var out bytes.Buffer
		if n := int(which) % (len(shows) + 1); n < len(shows) {
			table := newTable(&out)
			if shows[n](table, data) != nil {
				return
			}
			must.Do(t, table.flush())
		} else {
			refusal := new(seqledgerv1.WriteError)
			if proto.Unmarshal(data, refusal) != nil {
				return
			}
			code := report(&out, false, &failure.Error{
				Code: refusal.GetCode(), ConnectCode: connect.Code(which), Message: refusal.GetMessage(),
				Field: refusal.GetField(),
				Key:   refusal.GetKey(), LeaderAddress: refusal.GetLeaderAddress(),
			})
			if code != exitFailed && code != exitRefused && code != exitUnknown {
				t.Errorf("%v ends with exit code %d", refusal, code)
			}
		}
		if bad := executable(out.String()); bad != "" {
			t.Errorf("%q shows in %q", bad, out.String())
		}
	})
}

// shown decodes a message and shows it.
func shown[M proto.Message](m M, show func(*table, M)) func(*table, []byte) error {
	return func(t *table, data []byte) error {
		if err := proto.Unmarshal(data, m); err != nil { // resets it first
			return err
		}
		show(t, m)
		return nil
	}
}

// FuzzScope: a scope that is taken is shown as it was given.
func FuzzScope(f *testing.F) {
	for _, text := range []string{"acme", "acme/main", "/", "a/", "a/b/c", "\xff", " / "} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		scope, err := (&scopeFlags{Scope: text}).scope()
		if err == nil && (scopeName(scope) != text || scope.GetOrganization() == "") {
			t.Errorf("%q is taken for %v and shown as %q", text, scope, scopeName(scope))
		}
	})
}
