package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// show prints an answer, which may be a message of the API: a line of JSON, or what human writes into aligned columns.
func (e *environment) show(answer any, human func(*table)) error {
	if m, ofAPI := answer.(proto.Message); ofAPI && e.json {
		return e.showJSON(m)
	} else if e.json {
		return e.showObject(answer)
	}
	t := newTable(e.stdout)
	human(t)
	return t.flush()
}

// showJSON prints one line.
func (e *environment) showJSON(m proto.Message) error {
	line, err := compactJSON(m)
	if err == nil {
		_, err = e.stdout.Write(append(line, '\n'))
	}
	return err
}

// compactJSON returns a message without spaces: protojson varies them on purpose, and the output must be stable for
// diff and shell scripts.
func compactJSON(m proto.Message) ([]byte, error) {
	b, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	err = json.Compact(&compact, b)
	return compact.Bytes(), err
}

// showObject prints an answer that is not a message of the API, with --json only.
func (e *environment) showObject(v any) error {
	encoder := json.NewEncoder(e.stdout)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// table aligns names and values, or columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) *table { return &table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)} }

// row prints its cells without empty ones at the end. Every cell is quoted, because a server
// may put anything into the texts of its answers.
func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = quoted(cells[i])
	}
	// An error shows when the table is flushed.
	_, _ = fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// field prints a name and a value, unless the value is empty.
func (t *table) field(name, value string) {
	if value != "" {
		t.row(name, value)
	}
}

func (t *table) flush() error { return t.w.Flush() }

func number[N ~uint32 | ~uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

// nonzero formats a number, and omits a zero that means "none".
func nonzero(n uint64) string {
	if n == 0 {
		return ""
	}
	return number(n)
}

func timestamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339Nano)
}

// quoted shows untrusted text on one line and in one column.
func quoted(s string) string { return operation.Display([]byte(s)) }

// harmless is quoted for messages, which may have several lines: control characters show as
// U+FFFD, and any kind of space as a space.
func harmless(message string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			return r
		case unicode.Is(unicode.Zs, r) || r == '\t':
			return ' '
		}
		return utf8.RuneError
	}, message)
}

func showReceipt(t *table, r *seqledgerv1.Receipt) {
	t.field("sequence", number(r.GetSequence()))
	t.field("transaction", r.GetTxId())
	t.field("session", nonzero(r.GetSession()))
	t.field("index", number(r.GetIndex()))
	t.field("block", number(r.GetBlockHeight())+", position "+number(r.GetBlockPosition()))
	t.field("committed", timestamp(r.GetCommittedAt()))
	t.field("actor", r.GetActor())
	t.field("request hash", r.GetRequestHash())
	if r.GetReplayed() {
		t.field("replayed", "yes, it had been committed before")
	}
	for i, result := range r.GetResults() {
		if v := result.GetVersion(); v != 0 {
			t.field(fmt.Sprintf("operation %d", i), "version "+number(v))
		}
	}
	showProof(t, r.GetBlockHeader(), r.GetProof())
}

func showProof(t *table, header *seqledgerv1.BlockHeader, proof *seqledgerv1.MerkleProof) {
	if header == nil && proof == nil {
		return
	}
	t.field("block tx root", hex.EncodeToString(header.GetTxRoot()))
	t.field("proof", fmt.Sprintf("leaf %d of %d", proof.GetLeafIndex(), proof.GetTreeSize()))
	for i, hash := range proof.GetPath() {
		t.field(fmt.Sprintf("proof path %d", i), hex.EncodeToString(hash))
	}
}

func showTransaction(t *table, tx *seqledgerv1.Transaction) {
	t.field("transaction", tx.GetTxId())
	t.field("scope", scopeName(tx.GetScope()))
	t.field("client", quoted(tx.GetClientId()))
	t.field("sequence", number(tx.GetSequence()))
	t.field("session", nonzero(tx.GetSession()))
	t.field("key", tx.GetIdempotencyKey())
	t.field("index", number(tx.GetIndex()))
	t.field("block", number(tx.GetBlockHeight())+", position "+number(tx.GetBlockPosition()))
	t.field("committed", timestamp(tx.GetCommittedAt()))
	t.field("actor", tx.GetActor())
	t.field("request hash", tx.GetRequestHash())
	for _, op := range tx.GetOperations() {
		verb, what := operation.Describe(op)
		t.row(verb, what)
	}
}

func showBlock(t *table, b *seqledgerv1.Block) {
	h := b.GetHeader()
	t.field("block", number(h.GetHeight()))
	t.field("scope", scopeName(h.GetScope()))
	t.field("hash", hex.EncodeToString(b.GetHash()))
	t.field("previous hash", hex.EncodeToString(h.GetPreviousHash()))
	t.field("tx root", hex.EncodeToString(h.GetTxRoot()))
	t.field("transactions", number(h.GetTxCount()))
	t.field("committed", timestamp(h.GetCommittedAt()))
	for _, tx := range b.GetTransactions() {
		t.row("")
		showTransaction(t, tx)
	}
}

func showConfig(t *table, c *seqledgerv1.Config) {
	for _, s := range settings {
		t.field(s.name(), s.show(c))
	}
}

func showClientState(t *table, s *seqledgerv1.ClientState) {
	t.field("status", strings.ToLower(strings.TrimPrefix(s.GetStatus().String(), "CLIENT_STATUS_")))
	t.field("last sequence", number(s.GetLastCommittedSequence()))
	t.field("session", nonzero(s.GetSession()))
	t.field("created at index", nonzero(s.GetCreatedIndex()))
	t.field("last key", s.GetLastIdempotencyKey())
	t.field("last request hash", s.GetLastRequestHash())
	t.field("last seen", timestamp(s.GetLastSeen()))
	t.field("expires", timestamp(s.GetExpiresAt()))
	t.field("receipt window", number(s.GetReceiptWindow()))
	for _, receipt := range s.GetReceipts() {
		t.row("")
		showReceipt(t, receipt)
	}
}
