package witness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	// patience is how long a witness may take for its cosignature.
	patience  = 5 * time.Second
	maxAnswer = 64 << 10
)

// Gatherer asks witnesses to cosign the checkpoints of a log.
type Gatherer struct {
	client    http.Client
	witnesses []*asked
}

// asked is a witness, and the size of the checkpoint that it has cosigned last.
type asked struct {
	Party

	size atomic.Int64
}

// NewGatherer returns one for the witnesses of a policy that have a URL. A nil transport is one like that of package
// http.
func NewGatherer(p *Policy, transport http.RoundTripper) *Gatherer {
	if transport == nil {
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: maxAnswer,
			IdleConnTimeout: time.Minute,
		}
	}
	// A witness that could send the log to another address could make it call what only the log can reach.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	g := &Gatherer{client: http.Client{Transport: transport, CheckRedirect: stay}}
	for _, w := range p.Witnesses {
		if w.URL != "" {
			g.witnesses = append(g.witnesses, &asked{Party: w})
		}
	}
	return g
}

// Gather returns a signed checkpoint with the cosignatures of all witnesses that give one in time. Those whose
// cosignature it has are not asked. The error is of the others; the checkpoint can be used as it is. prove returns the
// proof that the checkpoint's tree is consistent with an older one, of a size from 1; it is called by several
// goroutines.
func (g *Gatherer) Gather(
	ctx context.Context, signed []byte, prove func(old int64) (tlog.TreeProof, error),
) (cosigned []byte, err error) {
	n, c, err := unverified(signed)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	failed := make([]error, len(g.witnesses))
	var mu sync.Mutex // of n.UnverifiedSigs
	var asking sync.WaitGroup
	for i, w := range g.witnesses {
		if _, err := note.Open(signed, note.VerifierList(w.Key)); err == nil {
			continue
		}
		asking.Go(func() { // ends with ctx
			s, err := g.ask(ctx, w, signed, n.Text, c.N, prove)
			if err != nil {
				failed[i] = fmt.Errorf("witness %s: %w", w.Name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			n.UnverifiedSigs = append(n.UnverifiedSigs, s)
		})
	}
	asking.Wait()
	cosigned, err = note.Sign(n)
	return cosigned, errors.Join(append(failed, err)...)
}

// ask asks a witness for its cosignature of a checkpoint with a text and a size.
func (g *Gatherer) ask(
	ctx context.Context, w *asked, signed []byte, text string, size int64, prove func(int64) (tlog.TreeProof, error),
) (s note.Signature, err error) {
	old := w.size.Load()
	for range 2 { // the second time with the size that it has told
		var proof tlog.TreeProof
		if old > size {
			break
		}
		if old > 0 && old < size {
			if proof, err = prove(old); err != nil {
				return s, err
			}
		}
		status, answer, err := g.post(ctx, w.URL, formatRequest(old, proof, signed))
		switch {
		case err != nil:
			return s, err
		case status == http.StatusOK:
			n, err := note.Open(append([]byte(text+"\n"), answer...), note.VerifierList(w.Key))
			if err != nil || n.Text != text {
				return s, errors.Join(errors.New("answers no cosignature"), err)
			}
			w.size.Store(size)
			return n.Sigs[0], nil
		case status != http.StatusConflict:
			return s, fmt.Errorf("answers %d: %.200q", status, answer)
		}
		if old, err = parseSize(strings.TrimSuffix(string(answer), "\n")); err != nil {
			return s, err
		}
	}
	return s, fmt.Errorf("says that it has cosigned a tree of the size %d; this one has %d", old, size)
}

func (g *Gatherer) post(ctx context.Context, url string, body []byte) (status int, answer []byte, err error) {
	url = strings.TrimSuffix(url, "/") + "/add-checkpoint"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	response, err := g.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if len(answer) > maxAnswer {
		err = fmt.Errorf("answers more than %d bytes", maxAnswer)
	}
	return response.StatusCode, answer, errors.Join(err, response.Body.Close())
}
