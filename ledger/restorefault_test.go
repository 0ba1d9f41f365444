package ledger

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
)

// fullDisk takes so many bytes and no more.
type fullDisk struct {
	io.Writer
	room int
}

var errDiskFull = errors.New("no space left on device")

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.room -= len(b); d.room < 0 {
		return 0, errDiskFull
	}
	return d.Writer.Write(b)
}

func TestRestoreReportsFullDisk(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	l := openTest(t, Options{Dir: source})
	if _, err := l.Write(t.Context(), testWrite("c", 1, 10)); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := l.Backup(t.Context(), &backup, BackupOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for from, restore := range map[string]func(RestoreOptions) (RestoreInfo, error){
		"backup": func(o RestoreOptions) (RestoreInfo, error) {
			return Restore(t.Context(), bytes.NewReader(backup.Bytes()), o)
		},
		"directory": func(o RestoreOptions) (RestoreInfo, error) { return RestoreDirectory(t.Context(), source, o) },
	} {
		o := RestoreOptions{
			Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
			disk: func(w io.Writer) io.Writer { return &fullDisk{w, 5000} },
		}
		if _, err := restore(o); !errors.Is(err, errDiskFull) {
			t.Errorf("%s: a full disk: %v", from, err)
		}
		if _, err := Open(t.Context(), Options{Dir: o.Dir}); !errors.Is(err, datadir.ErrRestoring) {
			t.Errorf("%s: a start afterwards: %v", from, err)
		}
		o.disk = nil
		if _, err := restore(o); err != nil {
			t.Errorf("%s: with room on the disk: %v", from, err)
		}
	}
}

// A rate is a rate over every stretch of time: what was slow for a while is not
// made up for.
func TestPacer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pacer{rate: 1000}
		send := func(n int) {
			if err := p.wait(context.Background(), n); err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		for range 11 {
			send(500)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("5,500 bytes, the last 500 of them behind the wait, at 1,000 a second took %v", took)
		}
		<-time.After(time.Hour) // whoever reads was slow
		began = time.Now()
		for range 11 {
			send(500)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("after an hour's pause the same took %v", took)
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		send(1 << 30)
		if err := p.wait(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("a wait that is cancelled: %v", err)
		}
	})
}
