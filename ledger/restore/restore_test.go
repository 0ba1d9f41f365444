package restore

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
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

// A restore that finds the disk full says so, leaves no ledger, and is begun again.
func TestReportsFullDisk(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	l := must.Get(ledger.Open(t.Context(), ledger.Options{Dir: source, Logger: quiet, LogBytes: 2 << 20}))(t)
	t.Cleanup(func() { _ = l.Close() })
	out, err := l.Write(t.Context(), &machine.Write{
		Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: "c", Actor: "system:test", Sequence: 1,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("written")}},
	})
	if err != nil || out.Code != machine.Committed {
		t.Fatal(out.Code, err)
	}
	var backup bytes.Buffer
	_, err = l.Backup(t.Context(), &backup, ledger.BackupOptions{RateBytes: -1})
	must.Do(t, errors.Join(err, l.Close()))
	for from, run := range map[string]func(Options) (Info, error){
		"backup": func(o Options) (Info, error) {
			return Backup(t.Context(), bytes.NewReader(backup.Bytes()), o)
		},
		"directory": func(o Options) (Info, error) { return Directory(t.Context(), source, o) },
	} {
		o := Options{
			Dir: t.TempDir(), Logger: quiet,
			disk: func(w io.Writer) io.Writer { return &fullDisk{w, 5000} },
		}
		check.Is(t, check.Err(run(o)), errDiskFull, "%s: a full disk", from)
		_, err := ledger.Open(t.Context(), ledger.Options{Dir: o.Dir, Logger: quiet})
		check.Is(t, err, datadir.ErrRestoring, "%s: a start afterwards", from)
		o.disk = nil
		must.Do(t, check.Err(run(o)), "%s: with room on the disk", from)
	}
}

// What cannot be restored to is refused before anything is made.
func TestRefusesOptions(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "restored")
	for name, o := range map[string]Options{
		"Options.Dir is empty":       {},
		"Options.Time is 1969-12-31": {Dir: dir, Time: time.Unix(-1, 0).UTC()},
		"Options.Time is 2201-01-01": {Dir: dir, Time: time.Date(2201, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		_, err := Backup(t.Context(), bytes.NewReader(nil), o)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want %q", o, err, name)
		}
		if _, err := os.Stat(o.Dir); o.Dir != "" && err == nil {
			t.Errorf("%s: the directory was made", name)
		}
	}
}
