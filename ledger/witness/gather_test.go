package witness_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	formatslog "github.com/transparency-dev/formats/log"
	formats "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/witness"
)

// gathering is a log whose checkpoints go to witnesses at servers: w0, w1 and so on.
type gathering struct {
	*witness.Gatherer

	t      *testing.T
	log    *witness.Key
	policy *witness.Policy
}

// serve serves handlers, whose keys are given, and returns the URL of each.
func serve(t *testing.T, handlers ...http.Handler) (urls []string) {
	t.Helper()
	for _, h := range handlers {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		urls = append(urls, s.URL)
	}
	return urls
}

func newGathering(t *testing.T, log *witness.Key, keys []*witness.Key, urls []string, quorum string) *gathering {
	t.Helper()
	lines := fmt.Sprintf("log %s\n", log)
	for i, key := range keys {
		lines += fmt.Sprintf("witness w%d %s %s\n", i, key, urls[i])
	}
	policy := must.Get(witness.ParsePolicy([]byte(lines + quorum)))(t)
	return &gathering{witness.NewGatherer(policy, nil), t, log, policy}
}

// gather gathers for a tree of a size, and returns the names of those that have cosigned.
func (g *gathering) gather(ctx context.Context, l *tree, size int64) (by []string, failed error) {
	g.t.Helper()
	text := l.text(g.t, size)
	cosigned, failed := g.Gather(ctx, signed(g.t, text, g.log), func(old int64) (tlog.TreeProof, error) {
		return tlog.ProveTree(size, old, l)
	})
	c, cosigners, err := g.policy.Satisfied(cosigned)
	must.Do(g.t, err)
	must.Equal(g.t, c.String(), text)
	for _, c := range cosigners {
		by = append(by, c.Name)
	}
	return by, failed
}

// theirWitness is a witness of the code of transparency-dev: its notes, its checkpoints and its proofs.
func theirWitness(t *testing.T, key *witness.Key, log *witness.Key) http.Handler {
	t.Helper()
	signer := must.Get(formats.NewSignerForCosignatureV1(created(t, witness.WitnessKey, key)))(t)
	verifier := must.Get(note.NewVerifier(log.String()))(t)
	newest := formatslog.Checkpoint{Hash: rfc6962.DefaultHasher.EmptyRoot()}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := string(must.Get(io.ReadAll(r.Body))(t))
		head, signed, _ := strings.Cut(body, "\n\n")
		lines := strings.Split(head, "\n")
		var old uint64
		must.Get(fmt.Sscanf(lines[0], "old %d", &old))(t)
		var hashes [][]byte
		for _, line := range lines[1:] {
			hashes = append(hashes, must.Get(base64.StdEncoding.DecodeString(line))(t))
		}
		n := must.Get(note.Open([]byte(signed), note.VerifierList(verifier)))(t)
		var c formatslog.Checkpoint
		must.Get(c.Unmarshal([]byte(n.Text)))(t)
		if old != newest.Size {
			w.Header().Set("Content-Type", "text/x.tlog.size")
			w.WriteHeader(http.StatusConflict)
			_, _ = fmt.Fprintln(w, newest.Size)
			return
		}
		must.Do(t, proof.VerifyConsistency(rfc6962.DefaultHasher, old, c.Size, hashes, newest.Hash, c.Hash))
		newest = c
		cosigned := must.Get(note.Sign(&note.Note{Text: n.Text}, signer))(t)
		_, _ = w.Write(cosigned[len(n.Text)+1:])
	})
}

// Witnesses are asked with the proof from what each has cosigned last, which they tell a log that does not know it.
func TestGather(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	l := newTree(t, 50, 50, "")
	keys := []*witness.Key{b.witnesses[0], newKey(t, witness.WitnessKey, "witness.example/theirs")}
	var asked atomic.Int32
	counting := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		b.ServeHTTP(w, r)
	})
	urls := serve(t, http.StripPrefix("/prefix", counting), theirWitness(t, keys[1], b.log))
	urls[0] += "/prefix/"
	g := newGathering(t, b.log, keys, urls, "quorum none\n")
	step := func(g *gathering, size int64, requests int32) {
		t.Helper()
		asked.Store(0)
		by, err := g.gather(t.Context(), l, size)
		must.Do(t, err)
		check.EqualSlices(t, by, []string{"w0", "w1"})
		check.Equal(t, asked.Load(), requests, "for the size %d: %d requests", size)
	}
	step(g, 0, 1)
	step(g, 7, 1)
	step(g, 7, 1)
	step(g, 31, 1)
	again := newGathering(t, b.log, keys, urls, "quorum none\n") // another leader
	step(again, 32, 2)
	step(again, 50, 1)
	by, err := g.gather(t.Context(), l, 40) // the one before, which is behind
	check.Equal(t, len(by), 0)
	check.ErrorContains(t, err, "says that it has cosigned a tree of the size 50; this one has 40")
	step(again, 50, 1)
	// Who has cosigned is asked no more.
	cosigned := must.Get(again.Gather(t.Context(), signed(t, l.text(t, 50), b.log), nil))(t)
	asked.Store(0)
	twice := must.Get(again.Gather(t.Context(), cosigned, nil))(t)
	check.Equal(t, asked.Load(), 0)
	check.Equal(t, string(twice), string(cosigned))
	check.ErrorContains(t, check.Err(g.Gather(t.Context(), []byte("no note"), nil)), "malformed")
}

// A fork, or what a restore has made under the same origin, gets no cosignature from a witness that knows better.
func TestGatherForAFork(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	l, fork := newTree(t, 50, 50, ""), newTree(t, 50, 20, "fork ")
	g := newGathering(t, b.log, b.witnesses, serve(t, b), "quorum none\n")
	by := must.Get(g.gather(t.Context(), l, 30))(t)
	check.Equal(t, len(by), 1)
	for _, size := range []int64{31, 50} {
		by, err := g.gather(t.Context(), fork, size)
		check.Equal(t, len(by), 0)
		check.ErrorContains(t, err, "witness w0: answers 422")
	}
	by, err := g.gather(t.Context(), fork, 25) // restored, and not yet as large
	check.Equal(t, len(by), 0)
	check.ErrorContains(t, err, "the size 30; this one has 25")
	b.mustHave(t, l.text(t, 30))
}

// A witness that answers wrongly gives no cosignature and disturbs no other.
func TestGatherFromLiars(t *testing.T) {
	t.Parallel()
	l := newTree(t, 30, 30, "")
	key := newKey(t, witness.WitnessKey, "witness.example/liar")
	lines := func(text string, by ...note.Signer) string {
		return string(signed(t, text, by...))[len(text)+1:]
	}
	text := l.text(t, 20)
	otherText := "a lie\n"
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	var reached atomic.Bool
	elsewhere := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Store(true)
		_, _ = io.WriteString(w, lines(text, key))
	}))[0]
	for _, liar := range []struct {
		name   string
		answer http.HandlerFunc
		says   string
	}{
		{"nothing", answer(200, ""), "answers no cosignature"},
		{"another's signature", answer(200, lines(text, newKey(t, witness.WitnessKey, "x"))), "answers no cosignature"},
		{"another text", answer(200, lines(otherText, key)), "invalid signature"},
		{"a log's signature", answer(200, lines(text, newKey(t, witness.LogKey, key.Name()))), "no cosignature"},
		{"more text", answer(200, "a lie\n\n"+lines(text+"\na lie\n", key)), "answers no cosignature"},
		{"no base64", answer(200, "— witness.example/liar !\n"), "malformed"},
		{"101 signatures", answer(200, strings.Repeat(lines(text, newKey(t, 4, "x")), 101)), "malformed"},
		{"an endless answer", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, endless{})
		}, "answers more than 65536 bytes"},
		{"an endless header", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 70<<10))
		}, "exceeded"},
		{"a redirect", http.RedirectHandler(elsewhere, http.StatusTemporaryRedirect).ServeHTTP, "answers 307"},
		{"no such log", answer(404, "the log is unknown"), `answers 404: "the log is unknown"`},
		{"an error", answer(500, strings.Repeat("x", 1000)), `answers 500: "xxxx`},
		{"a size that is none", answer(409, "-1\n"), "the size"},
		{"the same size again", answer(409, "0\n"), "the size 0; this one has 20"},
		{"a size for ever", answer(409, "7\n"), "the size 7; this one has 20"},
		{"a size that is larger", answer(409, "4611686018427387904\n"), "the size 4611686018427387904;"},
		{"a connection cut", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		b := newBed(t)
		keys := []*witness.Key{b.witnesses[0], key}
		var asked atomic.Int32
		g := newGathering(t, b.log, keys, serve(t, b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			liar.answer(w, r)
		})), "quorum w0\n")
		by, err := g.gather(t.Context(), l, 20)
		check.EqualSlices(t, by, []string{"w0"}, liar.name)
		check.Equal(t, asked.Load() <= 2, true, "%s: %d requests: %v", liar.name, asked.Load())
		check.ErrorContains(t, err, "witness w1: ", liar.name)
		check.ErrorContains(t, err, liar.says, liar.name)
		check.Equal(t, len(err.Error()) < 500, true, "%s: %d bytes of an error: %v", liar.name, len(err.Error()))
	}
	check.Equal(t, reached.Load(), false, "a redirect was followed: %v")
	// It is asked again as if nothing had been, and so is one whose proof could not be made.
	b := newBed(t)
	must.Equal(t, first(b.add(t, l, 0, 9)), http.StatusOK)
	lies := true
	g := newGathering(t, b.log, b.witnesses, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lies {
			answer(409, "4611686018427387904\n")(w, r)
			return
		}
		b.ServeHTTP(w, r)
	})), "quorum none\n")
	_, err := g.gather(t.Context(), l, 20)
	check.ErrorContains(t, err, "the size 4611686018427387904")
	lies = false
	noProof := errors.New("a tile is missing")
	_, err = g.Gather(t.Context(), signed(t, text, b.log), func(int64) (tlog.TreeProof, error) { return nil, noProof })
	check.Is(t, err, noProof)
	check.Equal(t, len(must.Get(g.gather(t.Context(), l, 20))(t)), 1)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// hanging is a transport on which one host never answers and the others are handlers.
type hanging map[string]http.Handler

func (h hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	if h[r.URL.Host] == nil {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	w := httptest.NewRecorder()
	h[r.URL.Host].ServeHTTP(w, r)
	return w.Result(), nil
}

// A witness that hangs, or whose answer never ends, costs five seconds and no cosignature but its own.
func TestGatherFromOneThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		hung := newKey(t, witness.WitnessKey, "witness.example/hung")
		lines := fmt.Sprintf("log %s\nwitness w0 %s https://good.example\nwitness w1 %s https://hung.example\n"+
			"quorum w0\n", b.log, b.witnesses[0], hung)
		policy := must.Get(witness.ParsePolicy([]byte(lines)))(t)
		g := &gathering{witness.NewGatherer(policy, hanging{"good.example": b}), t, b.log, policy}
		began := time.Now()
		by, err := g.gather(t.Context(), newTree(t, 9, 9, ""), 9)
		check.EqualSlices(t, by, []string{"w0"})
		check.Is(t, err, context.DeadlineExceeded)
		check.Equal(t, time.Since(began), 5*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = g.gather(ctx, newTree(t, 9, 9, ""), 9)
		check.Is(t, err, context.Canceled)
		check.Equal(t, time.Since(began), 5*time.Second)
	})
}
