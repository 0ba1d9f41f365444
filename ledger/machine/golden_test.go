package machine

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

var update = flag.Bool("update", false, "write the golden files of the format anew")

// golden compares bytes with a file. They are what old logs, states and hashes
// are made of, so that a difference is never a detail.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "format", name+".hex")
	if *update {
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(wrap(hex.EncodeToString(got))), 0o644))
		return
	}
	want := goldenBytes(t, name)
	if string(got) == string(want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	t.Errorf("THIS CHANGES THE FORMAT: %s differs from byte %d on.\n got %x\nwant %x\n"+
		"Ledgers that were written by earlier versions could not be read, or would hash differently.",
		name, at, got, want)
}

func goldenBytes(t *testing.T, name string) []byte {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("testdata", "format", name+".hex")))(t)
	b := must.Get(hex.DecodeString(strings.Join(strings.Fields(string(text)), "")))(t)
	return b
}

func wrap(text string) string {
	var b strings.Builder
	for len(text) > 64 {
		b.WriteString(text[:64] + "\n")
		text = text[64:]
	}
	return b.String() + text + "\n"
}

func goldenWrite() *Write {
	return &Write{
		Scope: Scope{"acme", "vault-1"}, ClientID: "client 7", Actor: "user:42", Session: 300, Sequence: 5,
		Key: Key{UUID: [16]byte{0xde, 0xad, 0xbe, 0xef, 15: 1}, Present: true},
		Operations: []Operation{
			{Kind: OpSetEntity, Key: []byte("k"), Value: []byte("v"), Condition: Condition{Kind: ConditionNotExists}},
			{Kind: OpSetEntity, Key: []byte("k2"), Condition: Condition{Kind: ConditionVersion, Version: 128},
				ExpiresAt: 1 << 60},
			{Kind: OpDeleteEntity, Key: []byte("k3"), Condition: Condition{Kind: ConditionMustExist}},
			{Kind: OpDeleteEntity, Key: []byte("k4"), Condition: Condition{Kind: ConditionValueEquals,
				Value: []byte("w")}},
			{Kind: OpCreateRelationship, Key: []byte("doc"), Relation: []byte("owner"), Subject: []byte("bob")},
			{Kind: OpDeleteRelationship, Key: []byte("doc"), Relation: []byte("viewer"), Subject: []byte("eve")},
			{Kind: OpAppend, Value: []byte("payload")},
		},
	}
}

func goldenTransaction() Transaction {
	w := goldenWrite()
	hash, _ := HashOperations(nil, w.Operations)
	return Transaction{
		LedgerID: testLedger, Index: 1<<40 + 7, CommittedAt: testStart, Scope: w.Scope, ClientID: w.ClientID,
		CreatedIndex: 299, Session: w.Session, Sequence: w.Sequence, Key: w.Key, RequestHash: hash, Actor: w.Actor,
		Operations: w.Operations, Versions: []uint64{1<<40 + 7, 0, 1<<40 + 7, 0, 1<<40 + 7, 0, 1<<40 + 7},
	}
}

var goldenConfig = Config{1_000, 24 * 3600 * second, 2_000, 64, 10_000_000, 90 * 24 * 3600 * second, 500 << 30}

func goldenHead() head {
	return head{
		index: 1<<40 + 8, time: testStart, digest: Hash{0xaa, 31: 0xbb}, streams: 3, config: goldenConfig,
		sincePass: 999, backlog: true, added: indexGrowth{300, 600}, longestPause: 90 * second,
		retention: retention{horizon: 1 << 40, dropped: mark{1<<40 - 1, testStart - 9, 300}, bytes: 1 << 33,
			marked: mark{time: testStart - 8, bytes: 70_000}},
		leaves: 300, origin: Hash{0xcc, 31: 0xdd},
		epochs: []epoch{{1, testLedger, 0}, {1 << 32, 0xfeed, testStart + 5}},
	}
}

// The canonical bytes of every kind of command, record and hash.
func TestGoldenFormat(t *testing.T) {
	t.Parallel()
	config := goldenConfig
	w := goldenWrite()
	bare := &Write{Scope: Scope{Organization: "acme"}, ClientID: "c", Actor: "a", Sequence: 1,
		Operations: []Operation{{Kind: OpAppend, Value: []byte("x")}}}
	session := &OpenSession{
		Scope: w.Scope, ClientID: w.ClientID, Actor: w.Actor, AttemptID: [16]byte{1, 2, 3, 15: 16},
		ExpectedSession: 300,
	}
	x := goldenTransaction()
	header := BlockHeader{
		Scope: w.Scope, Height: 1_000, PreviousHash: Hash{1, 31: 2}, TxRoot: LeafHash(x.Leaf()), TxCount: 1,
		CommittedAt: testStart,
	}
	headerHash := header.Hash()
	links := []place{{299, 10}, {200, 11}, {100, 12}, {7, 128}}
	chain := chainHead{height: 6, hash: headerHash, places: []place{{1<<40 + 7, 300}, {1<<40 + 7, 300}, {299, 11}}}
	leaf := LeafHash(x.Leaf())
	node := hashNode(&leaf, &headerHash)
	s := stream{
		created: 299, session: 300, last: 5, lastSeen: testStart, indexed: testStart - 1,
		attempts: [][16]byte{{9}, {8}},
	}
	for _, slot := range []windowSlot{{399, 0xffffffff}, {400, 0}, {1<<40 + 7, (&head{seed: 77}).fingerprint(x.Key)}} {
		s.window.push(slot, 64)
	}
	h := goldenHead()
	e := entity{present: true, version: 1<<40 + 7, expiresAt: 1 << 60, value: []byte("value")}
	inBlock := entity{present: true, version: 1<<40 + 7, expiresAt: 1 << 60,
		entityPlace: entityPlace{true, 99_999}}
	encoded := x.Encode()
	stored := storedTransaction{
		encoded: encoded, head: len(encoded) - len(appendOperations(nil, w.Operations)) + 1, changed: []byte{0x55},
		position: 300,
	}
	id := x.ID()
	hash := x.RequestHash
	keyedID := KeyedID{w.Scope, "POST /jobs", "user:42", [32]byte{0xab, 31: 0xcd}}
	keyedTransaction := x
	keyedTransaction.Session, keyedTransaction.Sequence, keyedTransaction.CreatedIndex, keyedTransaction.Key = 0, 0,
		0, Key{}
	keyedTransaction.Keyed = &keyedID
	entry := keyedEntry{indexed: testStart - 1, responseAt: 300, checkpointAt: 0, Record: keyed.Record{
		State: keyed.Committed, Fingerprint: keyed.Fingerprint{Algorithm: 2, Digest: [32]byte{1, 31: 2}}, Token: 299,
		AttemptID: keyed.AttemptID{3, 15: 4},
		Policy:    keyed.TakeOver, Attempts: 2, LeaseEnd: testStart + 60*second, LeaseSet: testStart,
		ValidUntil: testStart + 5, TTL: second, ForgetAfter: 3 * second,
		Created: testStart - 2, Completed: testStart + 1, Expires: testStart + 1 + second, ResponseSize: 600,
		ResponseSum: [32]byte{5, 31: 6},
		Past:        []keyed.PastAttempt{{ID: keyed.AttemptID{7, 15: 8}, Until: testStart + 9}},
	}}
	for name, got := range map[string][]byte{
		"command_create":         AppendCreate(nil, testLedger, 77, config),
		"command_write":          AppendWrite(nil, w),
		"command_write_bare":     AppendWrite(nil, bare),
		"command_open_session":   AppendOpenSession(nil, session),
		"command_update_nothing": AppendUpdateConfig(nil, &ConfigUpdate{}, "system:test"),
		"command_update_all": AppendUpdateConfig(nil, &ConfigUpdate{
			new(uint64(1)), new(second), new(uint64(3)), new(uint64(4)), new(uint64(500)),
			new(6 * second), new(uint64(7 << 20)),
		}, "system:test"),
		"command_epoch": AppendEpoch(nil, 0xfeed, testStart),
		"command_tick":  AppendTick(nil),
		"command_keyed_write": AppendKeyedWrite(nil, &KeyedWrite{ID: keyedID, ClientID: "c", Actor: "a", TTL: second,
			MaxKeys: 300, Operations: bare.Operations}),
		"record_keyed":      entry.append(nil),
		"key_keyed":         keyedID.TableKey(),
		"key_principal":     appendPrincipalKey(nil, w.Scope.Organization, w.Scope.Vault, keyedID.Principal),
		"transaction_keyed": keyedTransaction.Encode(),
		"entry": AppendFramed(AppendFramed(AppendEntryHeader(nil,
			EntryHeader{testStart, Check{1<<40 + 6, 0xfeedfacefeedface}}, 2),
			AppendTick(nil)), AppendWrite(nil, bare)),
		"operations":         appendOperations(nil, w.Operations),
		"request_hash":       hash[:],
		"transaction":        x.Encode(),
		"leaf":               x.Leaf(),
		"transaction_hash":   leaf[:],
		"transaction_stored": appendStored(nil, stored),
		"block":              appendBlock(nil, header.append(nil), 300, 300, links, appendStored(nil, stored)),
		"record_chain":       chain.append(nil),
		"merkle_node":        node[:],
		"block_header":       header.append(nil),
		"block_header_hash":  headerHash[:],
		"record_stream":      s.append(nil),
		"record_entity":      e.append(nil),
		"record_entity_long": inBlock.append(nil),
		"head":               h.append(nil),
		"tx_id":              id[:],
		"record_mark":        h.retention.marked.append(nil),
		"key_mark":           appendMarkKey(nil, 1<<40+7),
		"key_carried":        inBlock.carriedKey(nil, 2),
		"key_scope":          appendScopeKey(nil, w.Scope),
		"key_expiry": appendExpiryKey(nil, expiryEntity, testStart,
			append(appendScopeKey(nil, w.Scope), "k"...)),
		"key_relationship": appendRelationshipParts(appendScopeKey(nil, w.Scope), []byte("doc"), []byte("owner"),
			[]byte("bob")),
	} {
		golden(t, name, got)
	}
	for kind := keyed.Reserve; kind <= keyed.Purge; kind++ {
		c := reserveKey(keyedID, 3, testStart)
		c.Kind, c.Token, c.State, c.Response, c.Data = kind, 299, keyed.Rejected, []byte("response"), []byte("data")
		golden(t, fmt.Sprintf("command_keyed_%d", kind), AppendKeyed(nil, c))
	}
}

// A short history: the numbers of the tables, their keys and values and the
// running digest, as they come out of Apply.
func TestGoldenHistory(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.goldenHistory()
	digest := f.view().Digest()
	golden(t, "history_state", f.encodedState())
	golden(t, "history_digest", digest[:])
}

func (f *fixture) encodedState() (state []byte) {
	for table := range f.mem.tables {
		for _, key := range f.mem.tables[table].keys {
			state = append(state, byte(table))
			state = appendBytes(state, key)
			state = appendBytes(state, f.mem.tables[table].values[key])
		}
	}
	return state
}

func (f *fixture) goldenHistory() {
	session := f.open("a", 1, 0, Committed).Session
	f.now += second
	f.entry(
		AppendWrite(nil, inSession(operations("a", 1, 1, setUntil("k", "v", f.now+1), remove("x")), session)),
		AppendWrite(nil, appendWrite("b", 2, 0, "a gap")),
		AppendWrite(nil, operations("b", 1, 2, relate("doc", "owner", "bob"))),
	)
	f.now += second
	f.round()
	f.now += testConfig().ClientTTL
	f.round()
	f.commit(appendWrite("c", 1, 0, "x"))
	f.one(AppendEpoch(nil, 0xfeed, 0))
}

// The golden bytes are read back: the format is not only written.
func TestGoldenBytesDecode(t *testing.T) {
	t.Parallel()
	x := goldenTransaction()
	d := decoder{rest: goldenBytes(t, "transaction_stored")}
	stored := d.storedTransaction()
	stored.changed, stored.position = []byte{0x55}, 3
	back, err := stored.decode(7)
	if err != nil || string(back.Encode()) != string(x.Encode()) || back.BlockHeight != 7 || back.Position != 3 {
		t.Errorf("the transaction reads back as %+v, %v", back, err)
	}
	for i, v := range back.Versions { // 0x55 has every other bit
		check.Equal(t, v, x.Index*uint64(1-i%2), "result %d is %d", i)
	}
	stored.changed = []byte{1, 2}
	if _, err := stored.decode(7); err == nil {
		t.Error("results of more operations than there are decode")
	}
}
