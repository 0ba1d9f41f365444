package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type journalCommand struct {
	Show journalShowCommand `cmd:"" help:"Show what a program's journal holds."`
}

type journalShowCommand struct {
	File string `arg:"" help:"The journal's file." type:"path"`
}

func (*journalShowCommand) Help() string {
	return `A journal is the file in which a Writer of the Go client or the TypeScript one, such as that of import, keeps each
write before it sends it. This changes nothing and works while the program has it open. Shown are the streams, and
for each the writes that are not known to be committed (unsettled) and those whose receipt the program has not
acknowledged (settled). Exit code 1 says that the file is damaged, and where, or that it cannot be read.

    seqledger journal show ./till/journal
    seqledger journal show ./till/journal --json`
}

// journalReport is the answer with --json.
type journalReport struct {
	File    string          `json:"file"`
	Bytes   int64           `json:"bytes,string"`
	Torn    int64           `json:"tornBytes,string"`
	Damage  *journalDamage  `json:"damage,omitempty"`
	Streams []journalStream `json:"streams"`
}

// journalDamage is the first defect.
type journalDamage struct {
	Offset int64  `json:"offset,string"`
	Reason string `json:"reason"`
}

// journalStream is one stream of a journal.
type journalStream struct {
	Organization string         `json:"organization"`
	Vault        string         `json:"vault,omitempty"`
	ClientID     string         `json:"clientId"`
	LedgerID     string         `json:"ledgerId"`
	Session      uint64         `json:"session,string"`
	AttemptID    string         `json:"attemptId,omitempty"`
	NextSequence uint64         `json:"nextSequence,string"`
	Writes       []journalWrite `json:"writes"`
}

// journalWrite is one write of a stream.
type journalWrite struct {
	Sequence       uint64                            `json:"sequence,string"`
	Tag            string                            `json:"tag,omitempty"`
	IdempotencyKey string                            `json:"idempotencyKey"`
	State          string                            `json:"state"`
	Operations     []message[*seqledgerv1.Operation] `json:"operations"`
	Receipt        *message[*seqledgerv1.Receipt]    `json:"receipt,omitempty"`
}

// message is a message of the API within an object. In JSON it is what showJSON prints.
type message[M proto.Message] struct{ of M }

func (m message[M]) MarshalJSON() ([]byte, error) { return compactJSON(m.of) }

func (c *journalShowCommand) Run(e *environment) error {
	found, err := journal.Inspect(c.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return usage("%w", err)
	case errors.Is(err, journal.ErrVersion):
		return err
	case err != nil:
		return fail(exitFailed, "name the journal's file as the program does when it opens it", "%w", err)
	}
	report := journalReport{File: c.File, Bytes: found.Bytes, Streams: []journalStream{}}
	if found.Damage == nil {
		report.Torn = found.Bytes - found.Good
	} else {
		report.Damage = &journalDamage{found.Damage.Offset, found.Damage.Reason}
	}
	for _, state := range found.Streams {
		stream, err := newJournalStream(state)
		if err != nil {
			return err
		}
		report.Streams = append(report.Streams, stream)
	}
	if err := e.show(report, report.show); err != nil {
		return err
	}
	if found.Damage != nil {
		return fail(exitFailed,
			"keep the file; the list shows what precedes the damage, and seqledger state shows what the ledger has "+
				"committed since",
			"%w", found.Damage)
	}
	return nil
}

// newJournalStream decodes what is opaque to the journal itself.
func newJournalStream(state journal.State) (journalStream, error) {
	s := journalStream{
		Organization: state.Name.Organization, Vault: state.Name.Vault, ClientID: state.Name.ClientID,
		LedgerID: fmt.Sprintf("%016x", state.Head.Ledger), Session: state.Head.Session,
		AttemptID: hex.EncodeToString(state.Head.Attempt), NextSequence: state.Head.NextSequence,
		Writes: []journalWrite{},
	}
	for _, entry := range state.Entries {
		w := journalWrite{Sequence: entry.Sequence, Tag: entry.Tag, IdempotencyKey: entry.Key, State: "unsettled"}
		operations, err := op.Decode(entry.Request)
		if err != nil {
			return s, err
		}
		for _, o := range operations {
			w.Operations = append(w.Operations, message[*seqledgerv1.Operation]{o})
		}
		if entry.Settled {
			w.State, w.Receipt = "settled", &message[*seqledgerv1.Receipt]{new(seqledgerv1.Receipt)}
			if err := proto.Unmarshal(entry.Receipt, w.Receipt.of); err != nil {
				return s, fmt.Errorf("receipt of sequence %d: %w", entry.Sequence, err)
			}
		}
		s.Writes = append(s.Writes, w)
	}
	return s, nil
}

// show prints the report for people.
func (r *journalReport) show(t *table) {
	t.field("journal", r.File)
	t.field("bytes", number(uint64(r.Bytes)))
	if r.Torn > 0 {
		t.field("incomplete", number(uint64(r.Torn))+
			" bytes at the end, being written or torn by a crash; nothing in them was sent")
	}
	if r.Damage != nil {
		t.field("damaged", "at byte "+number(uint64(r.Damage.Offset))+": "+oneLine(r.Damage.Reason))
	}
	for _, s := range r.Streams {
		t.row("")
		t.field("stream", scopeName(&seqledgerv1.Scope{Organization: s.Organization, Vault: s.Vault})+", client "+
			quoted(s.ClientID))
		t.field("ledger", s.LedgerID)
		t.field("session", nonzero(s.Session))
		t.field("opening session", s.AttemptID)
		t.field("next sequence", nonzero(s.NextSequence))
		for _, w := range s.Writes {
			what := w.State + ", key " + quoted(w.IdempotencyKey)
			if w.Tag != "" {
				what += ", tag " + quoted(w.Tag)
			}
			if w.Receipt != nil && w.Receipt.of.GetTxId() != "" {
				what += ", transaction " + quoted(w.Receipt.of.GetTxId())
			}
			t.field("write "+number(w.Sequence), what)
			for _, o := range w.Operations {
				verb, object := operation.Describe(o.of)
				t.row("  "+verb, object)
			}
		}
	}
}
