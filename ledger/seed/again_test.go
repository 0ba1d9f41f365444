package seed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/verify"
)

// image is a node as a kill left it, and the seed that another node would send it.
type image struct {
	dir     string // its state is older than its log
	seed    []byte // its position is after the end of that log
	at      raftlog.Position
	members string
	ledger  machine.LedgerID
}

// joined starts a cluster of two nodes with some writes in it. The second node has the id 2.
func joined(t *testing.T) (first, second *node, dir string) {
	t.Helper()
	first = serve(t, filepath.Join(t.TempDir(), "1"), listen(t))
	for sequence := uint64(1); sequence <= 50; sequence++ {
		write(t, first, sequence)
	}
	listener := listen(t)
	dir = filepath.Join(t.TempDir(), "2")
	must.Do(t, Join(t.Context(), options(dir, listener.Addr().String(), first.address)))
	second = serve(t, dir, listener)
	return first, second, dir
}

// seedOf returns the seed that a node sends to others.
func seedOf(t *testing.T, n *node) (content []byte, info backupfile.Info) {
	t.Helper()
	var b bytes.Buffer
	must.Do(t, n.Seed(t.Context(), &b, 0, -1, func() error { return nil }))
	info = must.Get(backupfile.Read(t.Context(), bytes.NewReader(b.Bytes()), nil,
		func(uint64) (io.Writer, error) { return io.Discard, nil }, nil))(t)
	return b.Bytes(), info
}

// killed returns a copy of a node's directory as a kill would leave it after the node has applied everything.
func killed(t *testing.T, n *node, dir string) string {
	t.Helper()
	standing(t, n)
	return copied(t, dir)
}

func copied(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	must.Do(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// newImage makes a node that is behind. It depends on the order of its steps.
func newImage(t *testing.T) *image {
	t.Helper()
	first, second, dir := joined(t)
	write(t, first, 51)
	m := &image{dir: killed(t, second, dir)}
	write(t, first, 52)
	var info backupfile.Info
	m.seed, info = seedOf(t, first)
	m.at, m.members, m.ledger = info.At, string(info.Members), info.LedgerID
	must.Do(t, errors.Join(second.Close(), first.Close()))
	return m
}

// content returns the relevant content of a directory: everything except the lock, whose content has no meaning.
func content(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	must.Do(t, fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "LOCK" {
			return err
		}
		fmt.Fprintln(h, path, e.IsDir())
		if e.IsDir() {
			return nil
		}
		b, err := fs.ReadFile(os.DirFS(dir), path)
		h.Write(b)
		return err
	}))
	return fmt.Sprintf("%x", h.Sum(nil))
}

// from answers each request with a body, and ends ctx at the second request.
func from(t *testing.T, dir string, body func() io.Reader) (context.Context, Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	o := options(dir, "127.0.0.1:1", "127.0.0.1:2")
	requests := 0
	o.RoundTripper = roundTrip(func(q *http.Request) (*http.Response, error) {
		if requests++; requests > 1 {
			cancel()
			return nil, errors.New("asked again")
		}
		return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: io.NopCloser(body()), Request: q}, nil
	})
	return ctx, o
}

func whole(b []byte) func() io.Reader { return func() io.Reader { return bytes.NewReader(b) } }

// mustHaveTaken expects the state of the image's seed in a directory, and checks it as verify does.
func (m *image) mustHaveTaken(t *testing.T, dir string, node uint64) {
	t.Helper()
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) > 0 || report.LedgerID != m.ledger {
		t.Fatalf("verify: %+v, %v", report, err)
	}
	d := must.Get(datadir.Open(dir, datadir.Created))(t)
	defer d.Close()
	b, err := readBehind(d)
	if err != nil || b.at != m.at || d.Node() != node || d.Fresh() {
		t.Errorf("node %d has the state of %+v, %v, want node %d at %s", d.Node(), b, err, node, m.at)
	}
	check.Equal(t, string(b.log.Members.Encode()), m.members, "the log has the members %+v: %v", b.log.Members)
}

// A node replaces its own state with that of another node, and remains the same node of the same cluster.
func TestAgain(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	ctx, o := from(t, m.dir, whole(m.seed))
	must.Do(t, Again(ctx, o, m.at.Index))
	m.mustHaveTaken(t, m.dir, 2)
	// Interrupted after the replacement, it has nothing left to do.
	o.RoundTripper = nil
	must.Do(t, Again(ctx, o, m.at.Index), "called again")
}

// The new log keeps the term and vote of the previous one, because a node that votes twice in a term elects two
// leaders.
func TestAgainKeepsTermAndVote(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	for _, test := range []struct{ before, want raftlog.State }{
		{raftlog.State{Term: 99, Vote: 1}, raftlog.State{Term: 99, Vote: 1, Commit: m.at.Index}},
		{raftlog.State{Term: m.at.Term, Vote: 2}, raftlog.State{Term: m.at.Term, Vote: 2, Commit: m.at.Index}},
	} {
		dir := copied(t, m.dir)
		d := must.Get(datadir.Open(dir, datadir.Created))(t)
		b, err := readBehind(d)
		if err == nil {
			err = os.RemoveAll(d.Log())
		}
		if err == nil {
			err = raftlog.CreateAt(raftlog.Options{Dir: d.Log(), Identity: d.Identity()},
				b.at, b.log.Members.Encode(), test.before)
		}
		must.Do(t, errors.Join(err, d.Close()))
		ctx, o := from(t, dir, whole(m.seed))
		must.Do(t, Again(ctx, o, m.at.Index))
		out, err := raftlog.ReadOutline(filepath.Join(dir, "log"), d.Identity())
		if err != nil || out.State != test.want {
			t.Errorf("the log has %+v, %v, want %+v", out.State, err, test.want)
		}
	}
}

// step returns the distance between the places at which a test damages n bytes, so that there are about count places.
func step(n, count int) int {
	if testing.Short() {
		count /= 8
	}
	return max(1, n/count)
}

// A stream that is cut or changed anywhere leaves the directory unchanged, whatever was received before.
func TestAgainRefusesDamage(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	before := content(t, m.dir)
	damaged := map[string][]byte{
		"nothing":              nil,
		"what follows the end": append(slices.Clone(m.seed), 0),
	}
	const header = 300
	for i := 0; i < len(m.seed); i += step(len(m.seed), 40) {
		damaged[fmt.Sprint("cut at ", i)] = m.seed[:i]
	}
	for i := 0; i < header; i += step(header, 40) { // package backupfile tests the rest byte for byte
		flipped := slices.Clone(m.seed)
		flipped[i] ^= 1 << (i % 8)
		damaged[fmt.Sprint("a bit of byte ", i)] = flipped
	}
	for what, stream := range damaged {
		ctx, o := from(t, m.dir, whole(stream))
		if err := Again(ctx, o, m.at.Index); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want another attempt", what, err)
		}
		must.Equal(t, content(t, m.dir), before, "%s: the directory has changed: %v", what)
	}
	ctx, o := from(t, m.dir, whole(m.seed))
	must.Do(t, Again(ctx, o, m.at.Index))
	m.mustHaveTaken(t, m.dir, 2)
}

// A seed is refused, and nothing changes, if it belongs to another ledger, is too old, comes from a cluster without
// this node, or has a position after which the node's own log has more entries.
func TestAgainRefusals(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	before := content(t, m.dir)
	other := newImage(t)
	h := func(change func(*backupfile.Info)) []byte { return rewritten(t, m.seed, change) }
	removed := raftlog.Members{Voters: []uint64{1}, Highest: 2}
	younger := raftlog.Members{Voters: []uint64{1}, Highest: 1}
	for _, test := range []struct {
		name, message string
		seed          []byte
		atLeast       uint64
	}{
		{"another ledger", "it is of ledger " + other.ledger.String(), other.seed, m.at.Index},
		{"a state that is too old", fmt.Sprintf("one of %d or later", m.at.Index+1), m.seed, m.at.Index + 1},
		{"another position", "announced", h(func(i *backupfile.Info) { i.At.Index++ }), m.at.Index},
		{"another term", "announced", h(func(i *backupfile.Info) { i.At.Term++ }), m.at.Index},
		{"members of before", "not among the members",
			h(func(i *backupfile.Info) { i.Members = younger.Encode() }), m.at.Index},
		{"a cluster without it", cluster.ErrRemoved.Error(),
			h(func(i *backupfile.Info) { i.Members = removed.Encode() }), m.at.Index},
		{"no members", "damaged", h(func(i *backupfile.Info) { i.Members = nil }), m.at.Index},
		{"not all block files", "damaged", h(func(i *backupfile.Info) { i.From++ }), m.at.Index},
	} {
		ctx, o := from(t, m.dir, whole(test.seed))
		if err := Again(ctx, o, test.atLeast); err == nil || !strings.Contains(err.Error(), test.message) {
			t.Errorf("%s: %v", test.name, err)
		}
		must.Equal(t, content(t, m.dir), before, "%s: the directory has changed: %v", test.name)
	}
	empty := t.TempDir()
	ctx, o := from(t, empty, whole(m.seed))
	if err := Again(ctx, o, m.at.Index); err == nil || !strings.Contains(err.Error(), "holds no ledger") {
		t.Errorf("an empty directory: %v", err)
	}
}

// A node never drops entries that it has acknowledged for a state before them, because its acknowledgement may have
// committed them.
func TestAgainKeepsWhatIsAhead(t *testing.T) {
	t.Parallel()
	first, second, dir := joined(t)
	write(t, first, 51) // after the state that the node started with
	seed, info := seedOf(t, first)
	write(t, first, 52)
	image := killed(t, second, dir)
	before := content(t, image)
	ctx, o := from(t, image, whole(seed))
	err := Again(ctx, o, info.At.Index)
	if err == nil || !strings.Contains(err.Error(), "must keep") || content(t, image) != before {
		t.Errorf("the log has more than the state of %s: %v", info.At, err)
	}
}
