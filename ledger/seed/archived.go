package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/ledger/verify"
)

// archivePatience is for how long a node waits until the archive has as much of the log as it needs, and for each piece
// of what it reads there. The leader copies the log every ten seconds.
const archivePatience = 15 * time.Second

// fetchArchived lets a node start from the newest state of the archive and the log that follows it. A node of the
// cluster must have the same digest where that ends: who can write to the archive could forge it otherwise, and a node
// with a forged log would count in elections.
func (o *Options) fetchArchived(
	ctx context.Context, as transport.Identity, node string, take *receiver, receive func(seed) error,
) error {
	began := time.Now()
	from, err := o.archived(ctx, take)
	if err != nil {
		return err
	}
	return receive(seed{
		read: from.Read,
		replay: func(path string, info *backupfile.Info) error {
			// Meanwhile the others forget their digests, and drop log, so it takes what has been archived since, as
			// long as that becomes less.
			for before := time.Duration(math.MaxInt64); ; {
				if err := from.Replay(ctx, path, take.d.Identity(), info, nil); err != nil {
					return err
				}
				took := time.Since(began)
				if took < o.retry || took >= before {
					return o.compare(ctx, as, node, info)
				}
				before, began = took, time.Now()
				if from, err = o.archived(ctx, take); err != nil {
					return err
				}
			}
		},
	})
}

// archived returns the newest state of the archive once the log that follows it goes as far as the node needs.
func (o *Options) archived(ctx context.Context, take *receiver) (from *verify.Source, err error) {
	most := time.NewTimer(o.patience)
	defer most.Stop()
	for {
		sources, err := verify.FromArchive(ctx, patientTarget{o.Archive, o.patience}, take.ledger, verify.Until{})
		if err != nil {
			return nil, err
		}
		if sources[0].End() >= take.atLeast {
			return &sources[0], nil
		}
		select {
		case <-time.After(o.retry):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-most.C:
			return nil, fmt.Errorf("%s goes up to entry %d of the log, and %d is needed", o.Archive, sources[0].End(),
				take.atLeast)
		}
	}
}

// patientTarget ends each call, and each read of a piece, that takes too long: a file system that hangs must not keep
// the node from asking the others, or from being stopped.
type patientTarget struct {
	archive.Target

	patience time.Duration
}

// List implements [archive.Target].
func (t patientTarget) List(ctx context.Context, folder string) ([]archive.Object, error) {
	return patiently(ctx, t, func() ([]archive.Object, error) { return t.Target.List(ctx, folder) })
}

// Open implements [archive.Target].
func (t patientTarget) Open(ctx context.Context, name string) (blockfile.File, error) {
	f, err := patiently(ctx, t, func() (blockfile.File, error) { return t.Target.Open(ctx, name) })
	if err != nil {
		return nil, err
	}
	return patientFile{f, ctx, t}, nil
}

type patientFile struct {
	blockfile.File

	ctx    context.Context //nolint:containedctx // It lives as long as one reading.
	target patientTarget
}

// Size implements [blockfile.File].
func (f patientFile) Size() (int64, error) { return patiently(f.ctx, f.target, f.File.Size) }

// pieceBytes is how much is read at once.
const pieceBytes = 4 << 20

// ReadAt implements [io.ReaderAt].
func (f patientFile) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) && err == nil {
		from, piece := at+int64(n), make([]byte, min(len(b)-n, pieceBytes)) // which a call that hangs may use later
		var read int
		read, err = patiently(f.ctx, f.target, func() (int, error) { return f.File.ReadAt(piece, from) })
		n += copy(b[n:], piece[:read])
	}
	return n, err
}

// patiently calls a function, which may never return, in a goroutine that ends with it.
func patiently[T any](ctx context.Context, t patientTarget, call func() (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	done := make(chan answer, 1)
	go func() { // ends with the call
		result, err := call()
		done <- answer{result, err}
	}()
	most := time.NewTimer(t.patience)
	defer most.Stop()
	select {
	case a := <-done:
		return a.result, a.err
	case <-ctx.Done():
		return result, context.Cause(ctx)
	case <-most.C:
		return result, fmt.Errorf("%s does not answer", t)
	}
}

// compare compares where a state stands with the digest of a node at the same entry of the log.
func (o *Options) compare(ctx context.Context, as transport.Identity, node string, info *backupfile.Info) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	url := o.url(node) + cluster.DigestQuery(info.At.Index, machine.Check{})
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: o.as(as)}).Do(q)
	if err != nil {
		return fmt.Errorf("digest of the node at %s: %w", node, err)
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, 128))
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	if err != nil {
		return fmt.Errorf("digest of the node at %s: %w", node, err)
	}
	if own := cluster.FormatCheck(info.Check()); own != string(text[:max(len(text), 1)-1]) {
		return fmt.Errorf("%w: the archive leads to %s after entry %d of the log, and the node at %s stands at %q",
			ErrDamaged, own, info.At.Index, node, text)
	}
	return nil
}
