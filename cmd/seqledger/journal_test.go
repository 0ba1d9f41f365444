package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// journalled writes to a real server with a journal that stays open.
func journalled(t *testing.T) (path string, j *journal.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "journal")
	j = must.Get(journal.Open(path, journal.Options{}))(t)
	t.Cleanup(func() { _ = j.Close() })
	s := serve(t)
	w := must.Get(writer.Open(t.Context(), s.client(t), writer.Options{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientID: "till", Journal: j,
	}))(t)
	submit := func(tag string) *writer.Pending {
		p := must.Get(w.SubmitTagged(t.Context(), tag, &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: []byte("pay " + tag)},
		}}))(t)
		return p
	}
	must.Get(submit("rent").Wait(t.Context()))(t)
	s.kill()
	submit("power")
	must.Do(t, j.Sync())
	return path, j
}

// TestJournalShow reads a journal that another process has open.
func TestJournalShow(t *testing.T) {
	t.Parallel()
	path, _ := journalled(t)
	seqledger(t, "journal", "show", path).expect(t, exitDone, "acme/main, client till", "next sequence  3",
		"settled, key ", "tag rent, transaction ", "unsettled, key ", "tag power", "append", "pay power")
	var got struct {
		Damage  *journalDamage
		Torn    int64 `json:"tornBytes,string"`
		Streams []struct {
			Writes []struct {
				Tag, State string
				Operations []json.RawMessage
				Receipt    json.RawMessage
			}
		}
	}
	out := seqledger(t, "journal", "show", path, "--json").expect(t, exitDone)
	must.Do(t, json.Unmarshal([]byte(out.stdout), &got))
	if len(got.Streams) != 1 || len(got.Streams[0].Writes) != 2 || got.Damage != nil || got.Torn != 0 {
		t.Fatalf("want one stream with two writes, got %v", out)
	}
	for i, want := range []struct{ tag, state, operation string }{
		{"rent", "settled", `{"append":{"payload":"cGF5IHJlbnQ="}}`},
		{"power", "unsettled", `{"append":{"payload":"cGF5IHBvd2Vy"}}`},
	} {
		w := got.Streams[0].Writes[i]
		if w.Tag != want.tag || w.State != want.state || len(w.Operations) != 1 ||
			string(w.Operations[0]) != want.operation ||
			(w.Receipt != nil) != (want.state == "settled") {
			t.Errorf("want %v, got %+v", want, w)
		}
	}
}

// TestJournalShowDamage: a torn tail is mentioned, damage is an error with its
// place, and neither changes the file.
func TestJournalShowDamage(t *testing.T) {
	t.Parallel()
	path, j := journalled(t)
	must.Do(t, j.Close())
	content := must.Get(os.ReadFile(path))(t)
	content = bytes.TrimRight(content, "\x00") // room for groups to come
	torn := writeFile(t, "torn", string(content[:len(content)-3]))
	seqledger(t, "journal", "show", torn).expect(t, exitDone, "incomplete", "tag rent")
	content[30] ^= 1
	damaged := writeFile(t, "damaged", string(content))
	seqledger(t, "journal", "show", damaged).expect(t, exitFailed, "damaged at byte 24", "next: ")
	out := seqledger(t, "journal", "show", damaged, "--json").expect(t, exitFailed)
	check.Contains(t, out.stdout, `"damage":{"offset":"24"`)
	check.Equal(t, string(must.Get(os.ReadFile(damaged))(t)), string(content), "the file was changed: %v")
	out = seqledger(t, "journal", "show", "../../client/journal/testdata/version2.journal").expect(t, exitFailed,
		"version2.journal has format version 2, and this program reads version 1; keep it and use the program")
	if strings.Contains(out.stderr, "damaged") || strings.Contains(out.stderr, "next: ") {
		t.Errorf("a journal of another version: %v", out)
	}
	seqledger(t, "journal", "show",
		writeFile(t, "other", "something else entirely, no journal")).expect(t, exitFailed, "damaged at byte 0")
	seqledger(t, "journal", "show", filepath.Join(t.TempDir(), "none")).expect(t, exitUsage, "no such file")
	seqledger(t, "journal", "show").expect(t, exitUsage)
}
