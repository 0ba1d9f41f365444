package main

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
)

// archivedLedger makes a ledger whose first files are in an archive alone, and closes it.
func archivedLedger(t *testing.T) (data, archived string) {
	t.Helper()
	data, archived = filepath.Join(t.TempDir(), "data"), t.TempDir()
	l := must.Get(ledger.Open(t.Context(), ledger.Options{
		Dir: data, Archive: archive.Directory(archived),
		Config:          machine.Config{EvictionInterval: 1, RetainBytes: 1 << 20},
		CheckpointBytes: 1 << 20, LogBytes: 4 << 20,
	}))(t)
	payload := make([]byte, machine.MaxValueBytes)
	sequence := uint64(0)
	for deadline := time.Now().Add(2 * time.Minute); l.Stats().DroppedFiles == 0; {
		sequence++
		_, err := l.Write(t.Context(), &machine.Write{
			Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: "c", Actor: "a", Sequence: sequence,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: payload}},
		})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("after %d writes nothing is dropped: %v", sequence, err)
		}
	}
	must.Do(t, l.Close())
	return data, archived
}

// The archive is checked and read without a ledger, and the whole history with it.
func TestArchiveCommands(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it writes two files of 64 MiB")
	}
	data, archived := archivedLedger(t)
	seqledger(t, "archive", "verify", archived).expect(t, exitDone, "problems")
	seqledger(t, "verify", "--data", data).expect(t, exitDone, "dropped")
	whole := seqledger(t, "verify", "--data", data, "--archive", archived).expect(t, exitDone)
	if strings.Contains(whole.String(), "dropped") {
		t.Errorf("with its archive: %s", whole)
	}
	seqledger(t, "archive", "cat", archived, "--scope", "acme/main", "--from-height", "2", "--limit", "1", "--json").
		expect(t, exitDone, `"height":"2"`)
	seqledger(t, "archive", "cat", archived, "--scope", "acme/other").expect(t, exitRefused, "no block")
	seqledger(t, "archive", "verify", t.TempDir()).expect(t, exitFailed, "no archive", "serve --archive")
	ids := must.Get(archive.Ledgers(t.Context(), archive.Directory(archived)))(t)
	seqledger(t, "archive", "verify", archived, "--ledger", ids[0].String()).expect(t, exitDone, ids[0].String())
	seqledger(t, "archive", "verify", archived, "--ledger", "0").expect(t, exitUsage, "--ledger: must be the id")
	seqledger(t, "archive", "verify", archived, "--ledger", "00000000000000ff").expect(t, exitFailed, "no FORMAT")
	seqledger(t, "archive", "verify", filepath.Join(archived, "absent")).expect(t, exitUsage, "no such file",
		"serve --archive", "mount")
	unmade := filepath.Join(t.TempDir(), "data")
	file := filepath.Join(archived, ids[0].String(), "FORMAT")
	seqledger(t, "serve", "--listen", "127.0.0.1:0", "--data", unmade, "--archive", file).
		expect(t, exitUsage, "--archive", "not a directory")
	if _, err := os.Stat(unmade); err == nil {
		t.Error("a ledger was made for a command line that is wrong")
	}
	seqledger(t, "verify", "--archive", archived, "--backup", "x").expect(t, exitUsage)
	name := must.Get(filepath.Glob(filepath.Join(archived, "*", "blocks", "0000000001-*")))(t)[0]
	second := filepath.Join(archived, "0000000000000001", "FORMAT")
	must.Do(t, errors.Join(os.Mkdir(filepath.Dir(second), 0o700), os.WriteFile(second, nil, 0o600)))
	seqledger(t, "archive", "verify", archived).expect(t, exitUsage, "--ledger", ids[0].String(), "0000000000000001")
	must.Do(t, os.RemoveAll(filepath.Dir(second)))
	b := must.Get(os.ReadFile(name))(t)
	b[len(b)/2] ^= 1
	must.Do(t, os.WriteFile(name, b, 0o600))
	seqledger(t, "archive", "verify", archived).expect(t, exitFailed, filepath.Base(name))
	seqledger(t, "verify", "--data", data, "--archive", archived).expect(t, exitFailed, "seqledger archive verify")
	must.Do(t, os.Remove(name))
	seqledger(t, "verify", "--data", data, "--archive", archived).expect(t, exitFailed,
		"0000000001.blocks in the archive",
		"seqledger archive verify "+archived)
	seqledger(t, "verify", "--data", data).expect(t, exitDone)
}

// statesInArchive makes a ledger that has copied a state to an archive at each of some starts. It returns the ledger
// index and the digest of the last one.
func statesInArchive(t *testing.T, starts int) (archived, last, digest string) {
	t.Helper()
	data, archived := filepath.Join(t.TempDir(), "data"), t.TempDir()
	for sequence := uint64(1); sequence <= uint64(starts); sequence++ {
		o := ledger.Options{
			Dir: data, Logger: slog.New(slog.DiscardHandler), Archive: archive.Directory(archived),
			ArchiveInterval: time.Hour,
		}
		l := must.Get(ledger.Open(t.Context(), o))(t)
		must.Get(l.Write(t.Context(), &machine.Write{
			Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: "c", Actor: "a", Sequence: sequence,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("x")}},
		}))(t)
		must.Do(t, l.Close())
		o.ArchiveInterval = time.Nanosecond
		l = must.Get(ledger.Open(t.Context(), o))(t)
		must.Await(t, func() bool { return l.Stats().Archive.StateIndex == l.Head().Index }, "a state")
		must.Do(t, l.View(t.Context(), func(v machine.View) error {
			last, digest = strconv.FormatUint(v.Index(), 10), v.Digest().String()
			return nil
		}))
		must.Do(t, l.Close())
	}
	return archived, last, digest
}

// TestRestoreFromArchive: the newest state of an archive is verified and restored from there alone; one that is damaged
// is named, with an older one that can be restored in its place.
func TestRestoreFromArchive(t *testing.T) {
	t.Parallel()
	archived, last, digest := statesInArchive(t, 2)
	data := filepath.Join(t.TempDir(), "restored")
	restored := seqledger(t, "restore", archived, "--data", data, "--json").expect(t, exitDone)
	if restored.field(t, "backupIndex") != last || restored.field(t, "backupDigest") != digest {
		t.Errorf("it is not the newest state: %v", restored)
	}
	seqledger(t, "verify", "--data", data).expect(t, exitDone, "problems       0")
	seqledger(t, "verify", "--backup", archived).expect(t, exitDone, "problems       0", digest)
	seqledger(t, "archive", "verify", archived).expect(t, exitDone, "state", "up to index "+last)

	copied := t.TempDir()
	for range 2 {
		seqledger(t, "archive", "copy", archived, copied).expect(t, exitDone, "copied")
	}
	seqledger(t, "archive", "verify", copied).expect(t, exitDone, "problems     0")
	again := filepath.Join(t.TempDir(), "copied")
	restored = seqledger(t, "restore", copied, "--data", again, "--json").expect(t, exitDone)
	if restored.field(t, "backupDigest") != digest {
		t.Error("a copy of the archive leads elsewhere")
	}
	seqledger(t, "archive", "copy", archived, filepath.Join(copied, "absent")).expect(t, exitFailed, "absent")

	parts := must.Get(filepath.Glob(filepath.Join(archived, "*", "state", "*", "00001")))(t)
	b := must.Get(os.ReadFile(parts[1]))(t)
	b[len(b)/2] ^= 1
	must.Do(t, os.WriteFile(parts[1], b, 0o600))
	name := filepath.ToSlash(parts[1][len(archived)+1:])
	seqledger(t, "archive", "verify", archived).expect(t, exitFailed, name)
	seqledger(t, "verify", "--backup", archived).expect(t, exitFailed, name)
	older := strings.TrimLeft(strings.Split(filepath.Base(filepath.Dir(parts[0])), "-")[0], "0")
	for i, to := range []string{"", last, older} { // the log leads from the older state to the newest index
		flags := []string{"restore", archived, "--data", filepath.Join(t.TempDir(), strconv.Itoa(i)), "--json"}
		want := last
		if to != "" {
			flags, want = append(flags, "--to-index", to), to
		}
		restored := seqledger(t, flags...).expect(t, exitDone)
		if restored.field(t, "backupIndex") != want || want == last && restored.field(t, "backupDigest") != digest {
			t.Errorf("--to-index %q leads to %v", to, restored)
		}
	}
	seqledger(t, "restore", archived, "--data", data+"2", "--to-index", "1").expect(t, exitFailed, "no state")
	seqledger(t, "restore", archived, "--data", data+"2", "--to-index", "999").expect(t, exitFailed,
		"ends at index "+last)
	seqledger(t, "restore", "--from-directory", data, "--data", data+"2", "--to-index", "1").expect(t, exitUsage,
		"--to-index", "archive")
	seqledger(t, "verify", "--data", data, "--to-time", "2027-01-31T11:59:59Z").expect(t, exitUsage, "--to-time")
	seqledger(t, "restore", archived, "--data", data+"2", "--to-time", "2100-01-01T00:00:00Z").expect(t, exitDone,
		"up to index "+last+", of ")
}

// TestServeMissesItsArchive: a server that is not told where the ledger's archive is says so wherever an operator
// looks, until the archive is named or given up.
func TestServeMissesItsArchive(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.kill()
	archived, mark := t.TempDir(), filepath.Join(s.data, "ARCHIVE")
	a := must.Get(archive.Open(t.Context(), archive.Directory(archived), archive.Options{
		Ledger: 1, Random: rand.Reader, // as if the ledger had had this id before
	}))(t)
	must.Do(t, os.WriteFile(mark, a.Mark().Encode(), 0o600))
	s = serveOn(t, s.data, s.address)
	s.do(t, "status").expect(t, exitDone, "archive", "none is given", mark, "serve --archive none")
	s.do(t, "archive", "status").expect(t, exitDone, "none is given", mark)
	check.Contains(t, scrapeAddress(t, s.address), "\nseqledger_archive_failing_seconds",
		"no metric says that files are not archived")
	s.kill()
	check.Contains(t, s.stderr.String(), mark, "the log")
	s = serveOn(t, s.data, s.address, "--archive", archived)
	if out := s.do(t, "status").expect(t, exitDone, archived); strings.Contains(out.String(), "none is given") {
		t.Errorf("with the archive: %s", out)
	}
	s.kill()
	s = serveOn(t, s.data, s.address, "--archive", "none")
	if out := s.do(t, "status").expect(t, exitDone); strings.Contains(out.String(), "archive") {
		t.Errorf("the archive is given up, and status says: %s", out)
	}
	s.kill()
	if _, err := os.Stat(mark); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(s.stderr.String(), "given up") {
		t.Errorf("%s: %v; the log: %s", mark, err, s.stderr.String())
	}
}
