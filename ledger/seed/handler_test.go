package seed

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

type seeder = func(context.Context, *patientWriter, uint64, func() error) error

// give serves a seed from h, and returns the error of fetching it.
func give(t *testing.T, h handler, o Options) error {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	o.setDefaults()
	o.RoundTripper = http.DefaultTransport
	node := strings.TrimPrefix(s.URL, "http://")
	return o.fetch(t.Context(), transport.Identity{}, node, 7, func(_ context.Context, r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		if err == nil {
			err = ErrDamaged // like a backup without an end
		}
		return err
	})
}

// Each failure of the sending node is reported to the receiving one.
func TestHandlerTellsItsErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk broke")
	for _, test := range []struct {
		name, message string
		seed          seeder
	}{
		{"too old", "503", func(
			_ context.Context, _ *patientWriter, atLeast uint64, _ func() error,
		) error {
			check.Equal(t, atLeast, 7, "asked for %d")
			return cluster.ErrSeedTooOld
		}},
		{"refused", "503", func(context.Context, *patientWriter, uint64, func() error) error {
			return ledger.ErrBackupRefused
		}},
		{"broken", "500", func(context.Context, *patientWriter, uint64, func() error) error {
			return broken
		}},
		{"broken later", "the other node says: " + broken.Error(),
			func(_ context.Context, _ *patientWriter, _ uint64, begin func() error) error {
				return errors.Join(begin(), broken)
			}},
	} {
		h := handler{seed: test.seed, wait: time.Hour, stall: time.Hour}
		if err := give(t, h, Options{}); err == nil || !strings.Contains(err.Error(), test.message) {
			t.Errorf("%s: %v, want %q", test.name, err, test.message)
		}
	}
	for _, query := range []string{"", "?at_least=", "?at_least=-1", "?at_least=x"} {
		w := httptest.NewRecorder()
		handler{}.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path+query, http.NoBody))
		check.Equal(t, w.Code, http.StatusBadRequest, "%q: status %d", query)
	}
}

// A node that cannot begin, because a backup is in progress, says so before the other node times out.
func TestHandlerDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	h := handler{wait: time.Millisecond, stall: time.Hour, seed: func(
		ctx context.Context, _ *patientWriter, _ uint64, begin func() error,
	) error {
		<-ctx.Done()
		if err := begin(); err == nil {
			t.Error("it began when its time was over")
		}
		return context.Cause(ctx)
	}}
	if err := give(t, h, Options{}); err == nil || !strings.Contains(err.Error(), "503") ||
		!strings.Contains(err.Error(), errBusy.Error()) {
		t.Error(err)
	}
	if beginTimeout >= stallTimeout {
		t.Error("the other node has lost patience by then")
	}
}

// A node that reads nothing is disconnected, and a node that sends nothing is abandoned, so that neither blocks the
// other for ever.
func TestStalledSeedEnds(t *testing.T) {
	t.Parallel()
	released, ended := make(chan struct{}), make(chan error, 1)
	h := handler{wait: time.Hour, stall: 10 * time.Millisecond, seed: func(
		ctx context.Context, w *patientWriter, _ uint64, begin func() error,
	) error {
		err := begin()
		for chunk := make([]byte, 1<<20); err == nil; { // more than all buffers between the two hold
			_, err = w.Write(chunk)
		}
		ended <- err
		return err
	}}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	o := Options{RoundTripper: http.DefaultTransport}
	o.setDefaults()
	go func() { // ends with released
		node := strings.TrimPrefix(s.URL, "http://")
		_ = o.fetch(t.Context(), transport.Identity{}, node, 0, func(context.Context, io.Reader) error {
			<-released
			return errors.New("it took nothing")
		})
	}()
	if err := <-ended; err == nil {
		t.Error("a writer that nothing is taken of came to its end")
	}
	close(released)

	silent := handler{wait: time.Hour, stall: time.Hour, seed: func(
		ctx context.Context, _ *patientWriter, _ uint64, begin func() error,
	) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	check.Is(t, give(t, silent, Options{stall: 10 * time.Millisecond}), errStalled, "a node that sends nothing")
}

// One node requests the state of another during a backup, and gets it once the backup has ended.
func TestSeedBesideBackup(t *testing.T) {
	t.Parallel()
	first := serve(t, filepath.Join(t.TempDir(), "1"), listen(t))
	begun, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() { // ends with release
		_, err := first.Backup(context.Background(), writerFunc(func(b []byte) (int, error) {
			select {
			case <-begun:
			default:
				close(begun)
				<-release
			}
			return len(b), nil
		}), ledger.BackupOptions{RateBytes: -1})
		done <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := first.Seed(ctx, io.Discard, 0, -1, func() error { return nil })
	check.Is(t, err, context.Canceled, "a seed beside a backup")
	close(release)
	must.Do(t, <-done)
	if _, info := seedOf(t, first); info.At.Index == 0 {
		t.Errorf("behind the backup: %+v", info)
	}
}
