// Package seed makes the data directory of a node that joins a cluster: it asks the leader for a place, and
// begins with the state of another node.
//
// handler.go gives a state, join.go takes one, header.go has the form in which it goes over the network: a header
// and a backup. Unlike a restored backup, a seed begins no epoch: the node is one more copy of the same ledger, and
// goes on behind the position of the log for which the state stands.
package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// Options say what a node joins. Dir, Nodes, RoundTripper and Peer are required.
type Options struct {
	Dir          string   // the data directory to make
	Nodes        []string // where other nodes are reached, host and port; one that answers is enough
	RoundTripper http.RoundTripper
	Encrypted    bool   // the nodes are reached by TLS
	Token        string // the join token; may be empty
	Peer, Client string // where this node is reached; see ledger.Cluster
	Logger       *slog.Logger

	retry time.Duration // between two attempts; 0 means a second
}

// ErrJoined says that the directory belongs to a node already.
var ErrJoined = errors.New("the data directory belongs to a node already")

// Join makes the data directory of a node that joins. It goes on trying until ctx ends; a repeated call goes on with
// the place in the cluster that an interrupted one was given. What is refused for good, such as an address
// that another node has, is returned at once.
func Join(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.retry == 0 {
		o.retry = time.Second
	}
	d, err := datadir.Open(o.Dir, datadir.Joined)
	if err != nil {
		return err
	}
	if !d.Fresh() {
		return errors.Join(ErrJoined, d.Close())
	}
	j := joining{o: o, d: d}
	err = j.run(ctx)
	return errors.Join(err, d.Close())
}

// joining is a node on its way into a cluster.
type joining struct {
	o    Options
	d    *datadir.Directory
	said string // the last problem that was logged
}

// finalError is not tried again.
type finalError struct{ error }

// Unwrap returns the error.
func (e finalError) Unwrap() error { return e.error }

func (j *joining) run(ctx context.Context) error {
	for {
		err := j.attempt(ctx)
		if final, is := errors.AsType[finalError](err); err == nil || is {
			if is {
				return final.error
			}
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("join a cluster: %w: %w", context.Cause(ctx), err)
		}
		if text := err.Error(); text != j.said {
			j.said = text // not again for each attempt
			j.o.Logger.Warn("this node could not join the cluster yet; it is tried again", "error", err)
		}
		timer := time.NewTimer(j.o.retry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (j *joining) attempt(ctx context.Context) error {
	answer, err := j.ask(ctx)
	if err != nil {
		return err
	}
	j.o.Logger.Info("this node has a place in the cluster and fetches its state", "node", answer.ID,
		"ledger", answer.Ledger, "from", answer.Leader)
	return j.fetch(ctx, answer)
}

// ask asks one node after another, and the leader that one names.
func (j *joining) ask(ctx context.Context) (answer ledger.JoinAnswer, err error) {
	q := ledger.JoinRequest{Nonce: j.d.Nonce(), Peer: j.o.Peer, Client: j.o.Client}
	nodes := append([]string(nil), j.o.Nodes...)
	const mostHops = 3 // a leader that is gone may be named for a while
	for i, hops := 0, 0; i < len(nodes); i++ {
		var problem error
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		answer, problem = ledger.AskToJoin(attempt, j.o.RoundTripper, j.url(nodes[i]), j.o.Token, q)
		cancel()
		if problem == nil {
			return answer, nil
		}
		err = errors.Join(err, fmt.Errorf("node at %s: %w", nodes[i], problem))
		refusal, refused := errors.AsType[*ledger.JoinRefusal](problem)
		switch {
		case refused && refusal.Leader != "" && hops < mostHops:
			hops++
			nodes = append(nodes, refusal.Leader)
		case refused && refusal.Final:
			return answer, finalError{fmt.Errorf("join the cluster of the node at %s: %w", nodes[i], problem)}
		}
	}
	return answer, err
}

// askTimeout bounds one question to join: a change of the members takes the answer of a majority.
const askTimeout = 10 * time.Second

func (j *joining) url(node string) string {
	if j.o.Encrypted {
		return "https://" + node
	}
	return "http://" + node
}

// stallTimeout is how long a state may send nothing before its connection is given up.
const stallTimeout = 30 * time.Second

// fetch takes the state of the leader.
func (j *joining) fetch(ctx context.Context, answer ledger.JoinAnswer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stallTimeout, func() { cancel(errors.New("the node sends nothing")) })
	defer stalled.Stop()
	url := fmt.Sprintf("%s%s?at_least=%d", j.url(answer.Leader), Path, answer.AtLeast)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	if j.o.Token != "" {
		r.Header.Set("Authorization", "Bearer "+j.o.Token)
	}
	response, err := (&http.Client{Transport: j.o.RoundTripper}).Do(r)
	if err != nil {
		return fmt.Errorf("fetch the state: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // what there is of it helps
		return fmt.Errorf("fetch the state: %s: %q", response.Status, text)
	}
	body := readerFunc(func(b []byte) (int, error) {
		n, err := response.Body.Read(b)
		stalled.Reset(stallTimeout)
		return n, err
	})
	if err := j.receive(ctx, body, answer); err != nil {
		if why := response.Trailer.Get(errorTrailer); why != "" {
			err = fmt.Errorf("%w: the other node says: %s", err, why)
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
		return fmt.Errorf("fetch the state: %w", err)
	}
	return nil
}

type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// progressEvery is how often the state's progress is logged.
const progressEvery = 5 * time.Second

// receive makes the directory of a seed. The marker comes last.
func (j *joining) receive(ctx context.Context, r io.Reader, answer ledger.JoinAnswer) error {
	h, at, err := readHeader(r)
	if err != nil {
		return err
	}
	if at.Index < answer.AtLeast {
		return fmt.Errorf("the state is of index %d, before the %d at which this node joined", at.Index, answer.AtLeast)
	}
	if err := checkMembers(h.Members, answer.ID); err != nil {
		return err
	}
	next := time.Now().Add(progressEvery)
	progress := func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressEvery)
			j.o.Logger.Info("fetching the state", "bytes", done, "of", total)
		}
	}
	fill := func(open func(file uint64) (io.Writer, error)) error {
		info, err := backupfile.Read(ctx, r, open, progress)
		if err == nil && info.LedgerID != answer.Ledger {
			err = fmt.Errorf("it is of ledger %s, and this node joins ledger %s", info.LedgerID, answer.Ledger)
		}
		return err
	}
	err = j.d.MakeState(fill, func(path string) error {
		has, err := boltstore.AdoptAt(path, j.d.Identity())
		if err == nil && raftlog.Position(has) != at {
			err = fmt.Errorf("%w: it was announced for %s and is at %s", ErrDamaged, at, raftlog.Position(has))
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := j.check(); err != nil {
		return errors.Join(err, j.d.DropState())
	}
	if err := j.makeLog(at, h.Members); err != nil {
		return errors.Join(err, j.d.DropState())
	}
	j.d.SetNode(answer.ID)
	if err := j.d.Finish(); err != nil {
		return finalError{err}
	}
	j.o.Logger.Info("this node has the state of the cluster", "node", answer.ID, "log index", at.Index)
	return nil
}

// checkMembers expects members among which this node is.
func checkMembers(encoded []byte, node uint64) error {
	members, _, err := raftlog.DecodeMembers(encoded)
	if err == nil && !members.Has(node) {
		err = fmt.Errorf("node %d is not among the members of the state", node)
	}
	return err
}

// check opens the state once, which reads it as each start does.
func (j *joining) check() (err error) {
	s, err := boltstore.Open(j.d.State(), boltstore.Options{Identity: j.d.Identity()})
	if err != nil {
		return fmt.Errorf("the state that was received: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.View(func(r machine.Reader) error {
		_, err := machine.Open(r)
		return err
	})
}

func (j *joining) makeLog(at raftlog.Position, members []byte) error {
	return raftlog.CreateAt(raftlog.Options{
		Dir: j.d.Log(), Identity: j.d.Identity(), Logger: j.o.Logger,
	}, at, members, raftlog.State{})
}
