package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/ledger/verify"
)

// archivePatience is for how long a node waits until the archive has as much of the log as it needs. The leader copies
// the log every ten seconds.
const archivePatience = 15 * time.Second

// fetchArchived lets a node start from the newest state of the archive and the log that follows it. A node of the
// cluster must have the same digest where that ends: who can write to the archive could forge it otherwise, and a node
// with a forged log would count in elections.
func (o *Options) fetchArchived(
	ctx context.Context, as transport.Identity, node string, take *receiver, receive func(seed) error,
) error {
	from, err := o.archived(ctx, take)
	if err != nil {
		return err
	}
	return receive(seed{
		read: from.Read,
		replay: func(path string, info *backupfile.Info) error {
			if err := from.Replay(ctx, path, take.d.Identity(), info, nil); err != nil {
				return err
			}
			return o.compare(ctx, as, node, info)
		},
	})
}

// archived returns the newest state of the archive once the log that follows it goes as far as the node needs.
func (o *Options) archived(ctx context.Context, take *receiver) (from *verify.Source, err error) {
	most, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	for {
		sources, err := o.list(ctx, most, take.ledger)
		if err != nil {
			return nil, err
		}
		if sources[0].End() >= take.atLeast {
			return &sources[0], nil
		}
		select {
		case <-time.After(o.retry):
		case <-most.Done():
			return nil, fmt.Errorf("%s goes up to entry %d of the log, and %d is needed", o.Archive, sources[0].End(),
				take.atLeast)
		}
	}
}

// list lists the archive. A file system that hangs must not keep the node from asking the others.
func (o *Options) list(ctx, most context.Context, ledger machine.LedgerID) ([]verify.Source, error) {
	type answer struct {
		sources []verify.Source
		err     error
	}
	done := make(chan answer, 1)
	go func() { // ends with the call, which may never return
		sources, err := verify.FromArchive(ctx, o.Archive, ledger, verify.Until{}) // whose sources are read with ctx
		done <- answer{sources, err}
	}()
	select {
	case a := <-done:
		return a.sources, a.err
	case <-most.Done():
		return nil, fmt.Errorf("%s does not answer", o.Archive)
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
